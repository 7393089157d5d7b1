"""What passes may ask about the compilation that they run in, kept in ``GraphModule.meta`` while it is lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import SupportOracle
from torchkiln_core.spec import DimRange

DIMS = "torchkiln_dims"
"""Key of ``GraphModule.meta`` that holds the ranges of the program's symbols."""
ORACLE = "torchkiln_oracle"
"""Key of ``GraphModule.meta`` that holds what knows the converters."""


def dims_of(module: torch.fx.GraphModule) -> Mapping[str, DimRange]:
    """The ranges of the program's symbols; none outside a compilation."""
    dims: Mapping[str, DimRange] = module.meta.get(DIMS, {})
    return dims


def is_accepted(module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """Whether a call has a converter that takes it. Outside a compilation nobody refuses."""
    oracle: SupportOracle | None = module.meta.get(ORACLE)
    return oracle is None or oracle.reject(OpCall.from_node(node)) is None


def put(module: torch.fx.GraphModule, old: torch.fx.Node, target: Callable[..., Any], args: tuple[Any, ...], **kwargs: Any) -> bool:
    """Puts a call of equal result in the place of ``old`` if a converter takes it; whether one does."""
    with module.graph.inserting_before(old):
        new = module.graph.call_function(target, args, kwargs)
    new.meta = dict(old.meta)
    if not is_accepted(module, new):
        module.graph.erase_node(new)
        return False
    old.replace_all_uses_with(new)
    return True
