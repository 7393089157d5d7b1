"""What passes may ask about the compilation that they run in, kept in ``GraphModule.meta`` while it is lowered."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import SupportOracle
from torchkiln_core.spec import DimRange
from torchkiln_lowering.layout import NoLayout, match_layout
from torchkiln_lowering.metadata import TRACED, fake_mode_of
from torchkiln_lowering.trace import without_new_guards

_log = logging.getLogger("torchkiln.lowering")
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


def added(
    module: torch.fx.GraphModule, anchor: torch.fx.Node, target: Callable[..., Any], args: tuple[Any, ...], **kwargs: Any
) -> torch.fx.Node:
    """A new call in front of ``anchor``, with its metadata, so that an oracle can judge it and what reads it."""
    mode = fake_mode_of(module.graph)
    fake_args, fake_kwargs = torch.fx.node.map_arg((args, kwargs), lambda source: source.meta["val"])
    with contextlib.nullcontext() if mode is None else without_new_guards(mode):
        fake = target(*fake_args, **fake_kwargs)
    with module.graph.inserting_before(anchor):
        node = module.graph.call_function(target, args, kwargs)
    node.meta |= {"val": fake, TRACED: fake}
    return node


def put(module: torch.fx.GraphModule, old: torch.fx.Node, target: Callable[..., Any], args: tuple[Any, ...], **kwargs: Any) -> bool:
    """Puts a call of equal result in the place of ``old`` if a converter takes it; whether one does.

    A call that this torch cannot trace without guards on symbolic sizes is not put there.
    """
    try:
        new = added(module, old, target, args, **kwargs)
    except RuntimeError as reason:
        _log.info("%s keeps its form: %s cannot be traced: %s", old.name, target, reason)
        return False
    return replaced(module, old, new)


def replaced(module: torch.fx.GraphModule, old: torch.fx.Node, new: torch.fx.Node) -> bool:
    """Lets ``new``, a call in front of ``old`` of equal result, take its place if a converter takes it, else erases it; whether one does.

    What reads ``old`` was traced with its strides, so the result is laid out like it.
    """
    new.meta = {**old.meta, **new.meta}
    if is_accepted(module, new):
        with contextlib.suppress(NoLayout):
            old.replace_all_uses_with(match_layout(module.graph, old, new, old.meta["val"]))
            return True
    module.graph.erase_node(new)
    return False
