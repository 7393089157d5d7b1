"""Giving a value the strides that the rest of the graph was traced with."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_lowering.metadata import same_strides
from torchkiln_lowering.trace import without_new_guards

aten = torch.ops.aten


class NoLayout(Exception):
    """No functional operator gives the wanted strides."""


def match_layout(graph: torch.fx.Graph, anchor: torch.fx.Node, value: Any, wanted: Any) -> Any:
    """``value``, or a copy of it in front of ``anchor`` laid out in memory like the fake tensor ``wanted``.

    Later views were traced with the strides of ``wanted`` and may be illegal for others.

    Raises:
        NoLayout: ``wanted`` is not dense (an expanded tensor, a slice).
    """
    if not isinstance(value, torch.fx.Node) or not isinstance(wanted, torch.Tensor) or same_strides(value.meta["val"], wanted):
        return value
    order = _dense_order(wanted)
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [(aten.clone.default, (), {"memory_format": torch.contiguous_format})]
    if order != list(range(wanted.dim())):
        inverse = [order.index(dim) for dim in range(wanted.dim())]
        steps = [(aten.permute.default, (order,), {}), *steps, (aten.permute.default, (inverse,), {})]
    for target, args, kwargs in steps:
        with without_new_guards(value.meta["val"].fake_mode):
            fake = target(value.meta["val"], *args, **kwargs)
        with graph.inserting_before(anchor):
            value = graph.call_function(target, (value, *args), kwargs)
        value.meta = {**{key: item for key, item in anchor.meta.items() if key not in ("tensor_meta", "unbacked_bindings")}, "val": fake}
    return value


def _dense_order(wanted: torch.Tensor) -> list[int]:
    """Dimensions from the outermost to the innermost in memory, for a tensor without holes or overlaps."""
    remaining = list(range(wanted.dim()))
    order: list[int] = []
    expected: Any = 1
    while remaining:
        # Dimensions of size 1 fit anywhere; the last one keeps the order of an already contiguous tensor.
        fitting = [dim for dim in remaining if statically_known_true(wanted.shape[dim] == 1)]
        fitting = fitting or [dim for dim in remaining if statically_known_true(wanted.stride(dim) == expected)]
        if not fitting:
            raise NoLayout(f"no operator lays a tensor out with strides {tuple(wanted.stride())} for shape {tuple(wanted.shape)}")
        chosen = fitting[-1]
        remaining.remove(chosen)
        order.insert(0, chosen)
        expected = expected * wanted.shape[chosen]
    return order
