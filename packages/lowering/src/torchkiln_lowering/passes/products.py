"""Products as written by hand: a number times tensors, whatever their order and grouping."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

aten = torch.ops.aten

_LONGEST = 12
"""Calls that are looked at: more than any known formula has, and few enough for chains of any length to take linear time."""
_MUL = (aten.mul.Tensor, aten.mul.Scalar)
_DIV = (aten.div.Tensor, aten.div.Scalar)
_ADD = (aten.add.Tensor, aten.add.Scalar)


@dataclass(frozen=True, slots=True)
class Product:
    """``number`` (NaN for a complex one) times every node of ``factors``; ``calls`` are the calls that make it, outermost first."""

    number: float
    factors: tuple[torch.fx.Node, ...]
    calls: tuple[torch.fx.Node, ...]


def product(root: torch.fx.Node) -> Product:
    """The product that a call is the root of. Calls within it that something else reads too are factors."""
    number: Any = 1.0
    factors: list[torch.fx.Node] = []
    calls: list[torch.fx.Node] = []
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        if not isinstance(node, torch.fx.Node):
            number *= node
        elif len(calls) == _LONGEST:
            factors.append(node)
        elif is_call(node, *_MUL) and _is_inner(node, root):
            calls.append(node)
            stack += [node.args[1], node.args[0]]
        elif is_call(node, *_DIV) and _is_inner(node, root) and not isinstance(node.args[1], torch.fx.Node) and node.args[1]:
            calls.append(node)
            number /= node.args[1]
            stack.append(node.args[0])
        elif is_call(node, aten.pow.Tensor_Scalar) and _is_inner(node, root) and node.args[1] in (2, 3):
            calls.append(node)
            stack += [node.args[0]] * (2 if node.args[1] == 2 else 3)
        else:
            factors.append(node)
    return Product(math.nan if isinstance(number, complex) else float(number), tuple(factors), tuple(calls))


def _is_inner(node: torch.fx.Node, root: torch.fx.Node) -> bool:
    return (node is root or len(node.users) == 1) and len(node.args) == 2 and _keeps_dtype(node)


def _keeps_dtype(node: torch.fx.Node) -> bool:
    tensors = [source.meta.get("val") for source in node.all_input_nodes]
    return all(isinstance(value, torch.Tensor) and value.dtype == node.meta["val"].dtype for value in tensors)


def is_call(value: Any, *targets: Callable[..., Any]) -> bool:
    """Whether a value is a call of one of these operators."""
    return isinstance(value, torch.fx.Node) and value.op == "call_function" and value.target in targets


def plus_number(node: Any) -> tuple[torch.fx.Node, float] | None:
    """``x`` and ``c`` of ``x + c``, in either order."""
    if not is_call(node, *_ADD) or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    if isinstance(left, torch.fx.Node) and isinstance(right, (int, float)):
        return left, float(right)
    return None


def plus(node: Any) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """The two nodes of a sum without a factor."""
    if not is_call(node, aten.add.Tensor) or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    return (left, right) if isinstance(left, torch.fx.Node) and isinstance(right, torch.fx.Node) else None
