"""What passes may ask about the compilation that they run in, kept in ``GraphModule.meta`` while it is lowered."""

from __future__ import annotations

from collections.abc import Mapping

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
