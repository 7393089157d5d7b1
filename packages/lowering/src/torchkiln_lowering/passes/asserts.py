"""Removal of checks that always hold. Checks of data stay."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchkiln_core.call import OpCall, decided_by_data
from torchkiln_core.spec import DimRange
from torchkiln_lowering.metadata import known_equal
from torchkiln_lowering.passes.context import dims_of

aten = torch.ops.aten


def remove_proven_checks(module: torch.fx.GraphModule) -> bool:
    """Erases metadata and shape assertions that the metadata, or the ranges of the dynamic dimensions, prove."""
    dims = dims_of(module)
    unproven = decided_by_data(module.graph)
    calls = (node for node in module.graph.nodes if node.op == "call_function")
    proven = [node for node in calls if _is_trivial(node) or (node not in unproven and _holds(node, dims))]
    for node in proven:
        module.graph.erase_node(node)
    return bool(proven)


def _is_trivial(check: torch.fx.Node) -> bool:
    """Whether it says that a size is not negative."""
    condition = check.args[0] if check.target is aten._assert_scalar.default else None
    if not isinstance(condition, torch.fx.Node) or condition.target is not operator.ge or condition.args[1] != 0:
        return False
    return isinstance(condition.args[0], torch.fx.Node) and condition.args[0].target is aten.sym_size.int


def _holds(node: torch.fx.Node, dims: Mapping[str, DimRange]) -> bool:
    if node.users:
        return False
    if node.target is aten._assert_tensor_metadata.default:
        return _metadata_holds(OpCall.from_node(_with_value(node)))
    if node.target is aten._assert_scalar.default:
        return _true(_value(node.args[0]), dims)
    if node.target in (aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default):
        call = OpCall.from_node(_with_value(node))
        size, low, high = (_value(call.arguments[name]) for name in ("size", "min", "max"))
        if low is None and node.target is aten.sym_constrain_range_for_size.default:
            low = 0
        return (low is None or _true(size >= low, dims)) and (high is None or _true(size <= high, dims))
    return False


def _with_value(node: torch.fx.Node) -> torch.fx.Node:
    node.meta.setdefault("val", None)
    return node


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument


def _metadata_holds(call: OpCall) -> bool:
    """Source: ATen/native/TensorProperties / ``_assert_tensor_metadata``: each attribute that is given must be equal."""
    tensor = _value(call.arguments["a"])
    size, stride = (call.arguments[name] for name in ("size", "stride"))
    return (
        (size is None or known_equal(tensor.shape, [_value(item) for item in size]))
        and (stride is None or known_equal(tensor.stride(), [_value(item) for item in stride]))
        and call.arguments["dtype"] in (None, tensor.dtype)
        and call.arguments.get("device") in (None, tensor.device)
        and call.arguments.get("layout") in (None, tensor.layout)
    )


def _true(condition: Any, dims: Mapping[str, DimRange]) -> bool:
    """Whether a condition holds for all sizes in the ranges that the program was given."""
    if not isinstance(condition, torch.SymBool):
        return condition is True or (isinstance(condition, (int, float)) and bool(condition))
    expression = condition.node.expr
    if expression == sympy.true:
        return True
    # Not by what the shape environment knows, nor by ranges of sizes that data decides: both come from these very checks.
    names = {symbol.name for symbol in expression.free_symbols}
    if not names or not names <= set(dims) or free_unbacked_symbols(condition):
        return False
    ranges = {symbol: ValueRanges(dims[symbol.name].min, dims[symbol.name].max) for symbol in expression.free_symbols}
    bounds = bound_sympy(expression, ranges)
    return bool(bounds.lower == sympy.true)
