"""GELU as written by hand, in either form and any grouping, as the one operator that converters have a layer for."""

from __future__ import annotations

import math

import torch
import torch.fx

from torchkiln_lowering.metadata import same_layout
from torchkiln_lowering.passes.context import is_accepted
from torchkiln_lowering.passes.products import is_call, plus, plus_number, product

aten = torch.ops.aten
_TOLERANCE = 1e-4
"""Hand-written constants have four digits or more."""


def raise_gelu(module: torch.fx.GraphModule) -> bool:
    """``x / 2 * (1 + erf(x / sqrt(2)))`` and ``x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`` as ``gelu``."""
    changed = False
    for node in list(module.graph.nodes):
        if not is_call(node, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
            continue
        found = _match(node)
        if found is None:
            continue
        x, form = found
        with module.graph.inserting_before(node):
            new = module.graph.call_function(aten.gelu.default, (x,), {"approximate": form})
        new.meta = dict(node.meta)
        if not is_accepted(module, new):
            module.graph.erase_node(new)
            continue
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
        changed = True
    return changed


def _match(node: torch.fx.Node) -> tuple[torch.fx.Node, str] | None:
    outer = product(node)
    if len(outer.factors) != 2 or not _near(outer.number, 0.5):
        return None
    for gate, x in (outer.factors, outer.factors[::-1]):
        inner = plus_number(gate)
        if inner is None or inner[1] != 1 or not same_layout(x.meta["val"], node.meta["val"]) or not _is_floating(x):
            continue
        if is_call(inner[0], aten.erf.default) and _is_scaled(inner[0].args[0], math.sqrt(0.5), x):
            return x, "none"
        if is_call(inner[0], aten.tanh.default) and _is_cubic(inner[0].args[0], x):
            return x, "tanh"
    return None


def _is_scaled(value: object, factor: float, x: torch.fx.Node) -> bool:
    if not isinstance(value, torch.fx.Node):
        return False
    found = product(value)
    return found.factors == (x,) and _near(found.number, factor)


def _is_cubic(value: object, x: torch.fx.Node) -> bool:
    """``sqrt(2 / pi) (x + 0.044715 x^3)``, or with ``x`` taken out of the sum."""
    if not isinstance(value, torch.fx.Node):
        return False
    found = product(value)
    if not _near(found.number, math.sqrt(2 / math.pi)):
        return False
    if len(found.factors) == 1:
        terms = plus(found.factors[0]) or (x, x)
        return any(first is x and _is_power(second, 3, x) for first, second in (terms, terms[::-1]))
    sums = [plus_number(factor) for factor in found.factors if factor is not x]
    return len(found.factors) == 2 and len(sums) == 1 and sums[0] is not None and sums[0][1] == 1 and _is_power(sums[0][0], 2, x)


def _is_power(value: torch.fx.Node, exponent: int, x: torch.fx.Node) -> bool:
    found = product(value)
    return found.factors == (x,) * exponent and _near(found.number, 0.044715)


def _near(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=_TOLERANCE)


def _is_floating(x: torch.fx.Node) -> bool:
    return bool(x.meta["val"].dtype.is_floating_point)
