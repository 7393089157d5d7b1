"""Statistics as written by hand: means over the last dimensions, and division by the root of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_lowering.passes.products import is_call, plus_number

aten = torch.ops.aten


def quotients(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The calls that ``rooted`` may know, by operator."""
    return [node for target in (aten.div.Tensor, aten.mul.Tensor) for node in graph.find_nodes(op="call_function", target=target)]


def rooted(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, torch.fx.Node, float]]:
    """Every ``(x, m, eps)`` of which a call is ``x / sqrt(m + eps)``, or a product with ``rsqrt(m + eps)`` or one over the root."""
    if not is_call(node, aten.div.Tensor, aten.mul.Tensor) or len(node.args) != 2:
        return
    divides = node.target is aten.div.Tensor
    for x, scale in (node.args,) if divides else (node.args, node.args[::-1]):
        under = _under_root(scale) if divides else _under_inverse_root(scale)
        shifted = plus_number(under)
        if shifted is not None and isinstance(x, torch.fx.Node):
            yield x, *shifted


def _under_root(node: Any) -> Any:
    """``m`` of ``sqrt(m)``."""
    return node.args[0] if is_call(node, aten.sqrt.default) or (is_call(node, aten.pow.Tensor_Scalar) and node.args[1] == 0.5) else None


def _under_inverse_root(node: Any) -> Any:
    """``m`` of ``1 / sqrt(m)``."""
    if is_call(node, aten.rsqrt.default) or (is_call(node, aten.pow.Tensor_Scalar) and node.args[1] == -0.5):
        return node.args[0]
    return _under_root(node.args[0]) if is_call(node, aten.reciprocal.default) else None


def last_dims(dims: Any, rank: int) -> int | None:
    """How many dimensions ``dims`` are, where they are the last ones of a tensor of that rank."""
    places = sorted(int(dim) % rank for dim in dims) if dims and rank else []
    return len(places) if places and places == list(range(rank - len(places), rank)) else None


def mean_of(node: Any) -> tuple[torch.fx.Node, int] | None:
    """``x`` of its mean over the last dimensions, which are kept with size 1, and their number."""
    if not is_call(node, aten.mean.dim):
        return None
    arguments = OpCall.from_node(node).arguments
    x = arguments["self"]
    value = x.meta["val"]
    count = last_dims(arguments["dim"], value.dim())
    plain = arguments["keepdim"] is True and arguments["dtype"] in (None, value.dtype)
    return (x, count) if plain and count is not None else None


def mean_square(node: Any) -> tuple[torch.fx.Node, int] | None:
    """``x`` of the mean of its squares over the last dimensions, and their number."""
    found = mean_of(node)
    if found is None:
        return None
    square, count = found
    squares = is_call(square, aten.square.default) or (is_call(square, aten.pow.Tensor_Scalar) and square.args[1] == 2)
    product = is_call(square, aten.mul.Tensor) and square.args[0] is square.args[1]
    return (square.args[0], count) if (squares or product) and isinstance(square.args[0], torch.fx.Node) else None


def variance_of(node: Any) -> tuple[torch.fx.Node, int] | None:
    """``x`` of its variance, divided by the count, over the last dimensions; and their number."""
    if not is_call(node, aten.var.correction, aten.var.dim):
        return None
    arguments = OpCall.from_node(node).arguments
    x = arguments["self"]
    count = last_dims(arguments["dim"], x.meta["val"].dim())
    biased = arguments["correction"] == 0 if "correction" in arguments else arguments["unbiased"] is False
    return (x, count) if biased and arguments["keepdim"] is True and count is not None else None


def only_reader(node: torch.fx.Node, *targets: Any) -> torch.fx.Node | None:
    """The call of one of these operators that alone reads a value."""
    user = next(iter(node.users), None)
    return user if len(node.users) == 1 and is_call(user, *targets) else None


def other_operand(node: torch.fx.Node | None, one: torch.fx.Node) -> torch.fx.Node | None:
    """The second tensor of a call of two tensors without further arguments, one of which is ``one``."""
    if node is None or node.kwargs or len(node.args) != 2:
        return None
    other = node.args[1] if node.args[0] is one else node.args[0]
    return other if isinstance(other, torch.fx.Node) and other is not one and isinstance(other.meta["val"], torch.Tensor) else None
