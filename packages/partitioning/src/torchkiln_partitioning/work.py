"""What a call takes: operations and bytes, estimated from shapes at the sizes that a program is tuned for."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from torchkiln_core.size import Size, evaluate, sizes_of, symbols_of
from torchkiln_core.spec import DimRange
from torchkiln_partitioning.cost import Arithmetic
from torchkiln_partitioning.sizes import expression_of
from torchkiln_partitioning.view import VIEWS, aten, dims_of, is_tensor

_log = logging.getLogger("torchkiln.partition")
_UNKNOWN = 128
_MOVES = VIEWS | {
    aten.cat, aten.clone, aten.constant_pad_nd, aten.copy, aten.embedding, aten.flip, aten.gather, aten.index, aten.index_select,
    aten.index_put, aten.pad, aten.repeat, aten.roll, aten.scatter, aten.select_scatter, aten.slice_scatter, aten.split,
    aten.split_with_sizes, aten.stack, aten.unbind, aten.view_copy, aten._to_copy, aten.to,
}  # fmt: skip
"""Operators that move elements and compute nothing."""


class WorkEstimator:
    """Operations and bytes of calls; a symbol of unknown range counts as 128.

    Args:
        dims: Range of each free symbol; sizes are taken at ``opt``.
    """

    def __init__(self, dims: Mapping[str, DimRange]) -> None:
        # A size may be a number divided by a symbol.
        self._values = {name: max(dim.opt, 1) for name, dim in dims.items()}
        self._known: dict[Size, int] = {}
        self._counts: dict[tuple[Size, ...], int] = {}
        self._elements: dict[torch.fx.Node, int] = {}
        self._bytes: dict[torch.fx.Node, int] = {}
        self._ordered: dict[torch.fx.Node, bool] = {}
        self._flops: dict[torch.fx.Node, int] = {}

    def shape_of(self, node: torch.fx.Node) -> tuple[int, ...]:
        """The shape ``[*]`` of a tensor node."""
        return tuple(map(self.evaluate, dims_of(node)))

    def elements_of(self, node: torch.fx.Node) -> int:
        """Elements of a tensor node; none for any other node."""
        found = self._elements.get(node)
        if found is None:
            sizes = dims_of(node) if is_tensor(node) else (0,)
            found = self._counts.get(sizes)
            if found is None:
                found = self._counts[sizes] = math.prod(map(self.evaluate, sizes))
            self._elements[node] = found
        return found

    def bytes_of(self, node: torch.fx.Node) -> int:
        """Bytes of a tensor node; none for any other node."""
        found = self._bytes.get(node)
        if found is None:
            count = self.elements_of(node)
            found = self._bytes[node] = count * node.meta["val"].dtype.itemsize if count else 0
        return found

    def moved_bytes_of(self, call: torch.fx.Node) -> int:
        """Bytes that a call reads and writes; those of the parts where it has several results."""
        results = call.users if isinstance(call.meta.get("val"), (tuple, list)) else (call,)
        return sum(map(self.bytes_of, results)) + sum(map(self.bytes_of, call.all_input_nodes))

    def lies_in_order(self, node: torch.fx.Node) -> bool:
        """Whether a tensor is contiguous; dimensions of size 1 lie anywhere."""
        found = self._ordered.get(node)
        if found is None:
            value = node.meta["val"]
            found = self._ordered[node] = value.layout != torch.strided or self._contiguous(node, sizes_of(value.stride()))
        return found

    def _contiguous(self, node: torch.fx.Node, strides: Sequence[Size]) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape_of(node)), reversed(strides), strict=True):
            if size == 0:
                return True
            if size != 1 and self.evaluate(stride) != expected:
                return False
            expected *= size
        return True

    def flops_of(self, node: torch.fx.Node) -> int:
        """Operations of a call.

        Products, convolutions and attention count two per multiplication and addition, by the formulas of
        ``torch.utils.flop_counter``; what moves elements counts none; any other call counts one per element of its largest tensor.
        """
        found = self._flops.get(node)
        if found is None:
            found = self._flops[node] = self._count(node)
        return found

    def launches_of(self, node: torch.fx.Node) -> int:
        """How many plain calls an eager call takes as long as, up to its kernel's launch."""
        return launches(node.target)

    def arithmetic_of(self, node: torch.fx.Node) -> Arithmetic:
        """What decides how fast the operations of a call are; a call of several results goes by the first."""
        value = node.meta.get("val")
        first = value[0] if isinstance(value, (tuple, list)) else value
        return arithmetic(node.target, first.dtype.itemsize if isinstance(first, torch.Tensor) else None)

    def _count(self, node: torch.fx.Node) -> int:
        target = node.target
        largest = max(map(self.elements_of, (node, *node.all_input_nodes)))
        if is_elementwise(target):
            return largest
        if not isinstance(target, OpOverload) or target.overloadpacket in _MOVES:
            return 0
        packet = target.overloadpacket
        if packet in _PRODUCTS:
            return _PRODUCTS[packet](self, node)
        try:
            args, kwargs = map_arg((node.args, node.kwargs), self._argument)
            return int(flop_registry[packet](*args, **kwargs, out_val=self._result(node)))
        except Exception as error:  # noqa: BLE001 -- users register formulas too, and torch's own refuse some calls
            _log.info("%s (%s) counts as elementwise: the formula for its operations failed: %s", node.name, target, error)
            return largest

    def _argument(self, node: torch.fx.Node) -> Any:
        """What a formula takes for a node: a tensor of its shape, a number as it is typically."""
        if is_tensor(node):
            return _of_shape(self.shape_of(node))
        size = expression_of(node)
        return node.meta.get("val") if size is None or isinstance(size, int) else self.evaluate(size)

    def _result(self, node: torch.fx.Node) -> Any:
        """A call's result, or its results, as a formula takes them."""
        return tree_map_only(torch.Tensor, lambda value: _of_shape(tuple(map(self.evaluate, sizes_of(value.shape)))), node.meta["val"])

    def evaluate(self, size: Size) -> int:
        """The integer that a size typically is."""
        if isinstance(size, int):
            return size
        if size not in self._known:
            names = symbols_of(size)
            self._known[size] = max(evaluate(size, {name: self._values.get(name, _UNKNOWN) for name in names}), 0)
        return self._known[size]


def _of_shape(shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor without elements. Most formulas are given its shape, but some read tensors themselves."""
    return torch.empty(shape, device="meta")


def _tensor_arguments(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    return [argument for argument in node.args if isinstance(argument, torch.fx.Node) and is_tensor(argument)]


def _product(work: WorkEstimator, node: torch.fx.Node) -> int:
    """``linear`` and ``matmul``: one product along the last dimension of the first argument per element of the result."""
    return 2 * math.prod(work.shape_of(node)) * work.shape_of(_tensor_arguments(node)[0])[-1]


def _attention(work: WorkEstimator, node: torch.fx.Node) -> int:
    """``scaled_dot_product_attention``: scores over ``[*, L, S]``, then their product with the values ``[*, S, D]``."""
    query, key, value = (work.shape_of(argument) for argument in _tensor_arguments(node)[:3])
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_of_rows(work: WorkEstimator, node: torch.fx.Node) -> int:
    """Attention of rows ``[*, L, H, D]`` to ``[*, S, H, D]``; those of several sequences count as one sequence."""
    query, key, value = (work.shape_of(argument) for argument in _tensor_arguments(node)[:3])
    return 2 * math.prod(query[:-1]) * key[-3] * (query[-1] + value[-1])


def _convolution(work: WorkEstimator, node: torch.fx.Node) -> int:
    """``conv1d`` to ``conv3d``: a product over the weight of one output channel per element of the result."""
    return 2 * math.prod(work.shape_of(node)) * math.prod(work.shape_of(_tensor_arguments(node)[1])[1:])


def _einsum(work: WorkEstimator, node: torch.fx.Node) -> int:
    """One product per combination of all labels; operands that broadcast with an ellipsis count as written."""
    equation, operands = node.args[0], node.args[1]
    if not isinstance(equation, str) or not isinstance(operands, (tuple, list)):
        return 0
    sizes: dict[str, int] = {}
    for labels, operand in zip(equation.partition("->")[0].replace(" ", "").split(","), operands, strict=True):
        if not isinstance(operand, torch.fx.Node):
            continue
        shape = work.shape_of(operand)
        before, dots, after = labels.partition("...")
        hidden = len(shape) - len(before) - len(after)
        names = [*before, *(f".{index}" for index in range(hidden, 0, -1) if dots), *after]
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
    return (2 if len(operands) > 1 else 1) * math.prod(sizes.values())


_PRODUCTS: Mapping[Any, Callable[[WorkEstimator, torch.fx.Node], int]] = {
    aten.linear: _product,
    aten.matmul: _product,
    aten.mv: _product,
    aten.dot: lambda work, node: 2 * math.prod(work.shape_of(_tensor_arguments(node)[0])),
    aten.scaled_dot_product_attention: _attention,
    aten._flash_attention_forward: _attention_of_rows,
    aten._efficient_attention_forward: _attention_of_rows,
    aten.conv1d: _convolution,
    aten.conv2d: _convolution,
    aten.conv3d: _convolution,
    aten.einsum: _einsum,
}
"""Operators that lowering keeps whole, which torch's table knows by their parts only, or with dimensions in another order."""


_BATCH_NORMS = frozenset(
    {aten._native_batch_norm_legit, aten._native_batch_norm_legit_no_training, aten.batch_norm, aten.native_batch_norm}
)
_CUDNN_LAUNCHES = 2
"""By what models of convolutions and batch norms took on H200 hosts: 22 to 28 us for each, where a plain call took 8 to 14."""
_NARROW_BYTES = 2
_CONVOLUTIONS = frozenset(
    {
        aten.conv1d, aten.conv2d, aten.conv3d, aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d, aten.convolution,
        aten.convolution_backward,
    }
)  # fmt: skip


def arithmetic(target: Any, item_bytes: int | None) -> Arithmetic:
    """What decides how fast the products of an operator are, by the bytes of an element of its result; ``None``: not known."""
    if item_bytes is not None and item_bytes <= _NARROW_BYTES:
        return Arithmetic.NARROW
    return Arithmetic.CONVOLUTIONS if _is_convolution(target) else Arithmetic.MATRICES


@functools.lru_cache(maxsize=4096)
def launches(target: Any) -> int:
    """How many plain calls an eager call takes as long as, up to its kernel's launch: cuDNN's take two."""
    is_cudnn = isinstance(target, OpOverload) and target.overloadpacket in _CONVOLUTIONS | _BATCH_NORMS
    return _CUDNN_LAUNCHES if is_cudnn else 1


@functools.lru_cache(maxsize=4096)
def _is_convolution(target: Any) -> bool:
    return isinstance(target, OpOverload) and target.overloadpacket in _CONVOLUTIONS


@functools.lru_cache(maxsize=4096)
def is_elementwise(target: Any) -> bool:
    """Whether calls of an operator count one operation per element of their largest tensor."""
    if not isinstance(target, OpOverload):
        return False
    packet = target.overloadpacket
    return packet not in _MOVES and packet not in _PRODUCTS and packet not in flop_registry
