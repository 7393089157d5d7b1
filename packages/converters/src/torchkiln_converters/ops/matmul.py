"""Matrix products."""

from __future__ import annotations

import functools

import torch

from torchkiln_converters.arrival import Result, Scalar
from torchkiln_converters.converter import converter
from torchkiln_converters.support import FLOATS, FP8, Equals, Support, fake, same_dtype
from torchkiln_converters.writing.narrow import widened
from torchkiln_converters.writing.shapes import reshape, static_sizes, window, with_rank
from torchkiln_converters.writing.values import add, cast, compute_dtype, mul, number
from torchkiln_core import Network, OpCall, Requires, Value
from torchkiln_core.layers import MatrixMultiply, MatrixOp
from torchkiln_core.size import sizes_of

aten = torch.ops.aten


@converter((aten.mm.default, aten.bmm.default), Support(dtypes=FLOATS))
def mm(net: Network, self: Value, mat2: Value) -> Value:
    """``mm(Tensor self, Tensor mat2)``, ``bmm``: ``[*, M, K], [*, K, N] -> [*, M, N]``."""
    return net.add(MatrixMultiply(), self, mat2)


@converter((aten.mv.default,), Support(dtypes=FLOATS))
def mv(net: Network, self: Value, vec: Value) -> Value:
    """``mv(Tensor self, Tensor vec)``: ``[M, K], [K] -> [M]``."""
    return net.add(MatrixMultiply(MatrixOp.NONE, MatrixOp.VECTOR), self, vec)


@converter(aten.dot.default, Support(dtypes=FLOATS))
def dot(net: Network, self: Value, tensor: Value) -> Value:
    """``dot(Tensor self, Tensor tensor)``: ``[K], [K] -> []``."""
    return net.add(MatrixMultiply(MatrixOp.VECTOR, MatrixOp.VECTOR), self, tensor)


@converter(aten.matmul.default, Support(dtypes=FLOATS, rules=(same_dtype("self", "other"),)))
def matmul(net: Network, self: Value, other: Value) -> Value:
    """``matmul(Tensor self, Tensor other)`` of all ranks; kept whole because its decomposition copies broadcast operands."""
    if self.rank == 1 or other.rank == 1:
        return _with_vector(net, self, other)
    rank = max(self.rank, other.rank)
    return net.add(MatrixMultiply(), with_rank(net, self, rank), with_rank(net, other, rank))


def _with_vector(net: Network, left: Value, right: Value) -> Value:
    """A vector is a row on the left and a column on the right; with batch dimensions it gets them as size 1."""
    left_op = MatrixOp.VECTOR if left.rank == 1 else MatrixOp.NONE
    right_op = MatrixOp.VECTOR if right.rank == 1 else MatrixOp.NONE
    if left.rank == 1 and right.rank > 2:
        left = reshape(net, left, (1,) * (right.rank - 2) + left.shape)
    elif right.rank == 1 and left.rank > 2:
        right = reshape(net, right, (1,) * (left.rank - 2) + right.shape)
    return net.add(MatrixMultiply(left_op, right_op), left, right)


@converter(aten.linear.default, Support(dtypes=FLOATS, rules=(same_dtype("input", "weight", "bias"),)))
def linear(net: Network, input: Value, weight: Value, bias: Value | None) -> Value:
    """``linear(Tensor input, Tensor weight, Tensor? bias=None)``: ``[*, K], [N, K], [N] -> [*, N]``; one product."""
    if weight.rank == 1:
        product = _with_vector(net, input, weight)
    elif input.rank == 1:
        product = net.add(MatrixMultiply(MatrixOp.VECTOR, MatrixOp.TRANSPOSE), input, weight)
    else:
        product = net.add(MatrixMultiply(MatrixOp.NONE, MatrixOp.TRANSPOSE), input, with_rank(net, weight, input.rank))
    return product if bias is None else add(net, product, bias)


@converter(aten.addmm.default, Support(dtypes=FLOATS))
def addmm(net: Network, self: Value, mat1: Value, mat2: Value, beta: Scalar, alpha: Scalar, result: Result) -> Value:
    """``addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1)``."""
    return _scaled_sum(net, self, net.add(MatrixMultiply(), mat1, mat2), beta, alpha, result)


@converter(aten.baddbmm.default, Support(dtypes=FLOATS))
def baddbmm(net: Network, self: Value, batch1: Value, batch2: Value, beta: Scalar, alpha: Scalar, result: Result) -> Value:
    """``baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1)``."""
    return _scaled_sum(net, self, net.add(MatrixMultiply(), batch1, batch2), beta, alpha, result)


@converter(aten.addmv.default, Support(dtypes=FLOATS))
def addmv(net: Network, self: Value, mat: Value, vec: Value, beta: Scalar, alpha: Scalar, result: Result) -> Value:
    """``addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1)``."""
    return _scaled_sum(net, self, net.add(MatrixMultiply(MatrixOp.NONE, MatrixOp.VECTOR), mat, vec), beta, alpha, result)


def _scaled_sum(net: Network, addend: Value, product: Value, beta: Scalar, alpha: Scalar, result: Result) -> Value:
    """``beta * addend + alpha * product``; a beta of 0 leaves out the addend, NaN and all, as PyTorch does."""
    wide = compute_dtype(result.dtype, beta, alpha)
    scaled = product if alpha == 1 else mul(net, cast(net, product, wide), number(net, alpha, wide))
    if beta == 0:
        return cast(net, scaled, result.dtype)
    term = addend if beta == 1 else mul(net, cast(net, addend, wide), number(net, beta, wide))
    return cast(net, add(net, cast(net, term, wide), cast(net, scaled, wide)), result.dtype)


_EXACT_TERMS = 1024
"""So many products of int8, of 2 ** 14 at most, have a sum that float32 holds, and every partial sum as well."""
_MAX_PARTS = 64


def _has_few_parts(call: OpCall) -> bool:
    (terms,) = static_sizes(sizes_of(fake(call, "self").shape[1:])) or (0,)
    return 0 < terms <= _EXACT_TERMS * _MAX_PARTS


@converter(
    aten._int_mm.default,
    Support(
        dtypes=frozenset({torch.int8}),
        results=frozenset({torch.int32}),
        ranks=range(2, 3),
        rules=(
            Requires(f"1 to {_EXACT_TERMS * _MAX_PARTS} products in each sum, known when the engine is built", _has_few_parts, "static"),
        ),
    ),
)
def int_mm(net: Network, self: Value, mat2: Value) -> Value:
    """``_int_mm(Tensor self, Tensor mat2)``: int8 ``[M, K], [K, N]`` -> int32 ``[M, N]``, exact: short sums in float32, added as int32."""
    left, right = (widened(net, item) for item in (self, mat2))
    (rows, terms), columns = left.shape, right.shape[1]
    if not isinstance(terms, int):
        raise TypeError(f"expected a number of products, got {terms}")
    sums: list[Value] = []
    for start in range(0, terms, _EXACT_TERMS):
        count = min(_EXACT_TERMS, terms - start)
        parts = left, right
        if count < terms:
            parts = window(net, left, (0, start), (rows, count), (1, 1)), window(net, right, (start, 0), (count, columns), (1, 1))
        sums.append(cast(net, net.add(MatrixMultiply(), *parts), torch.int32))
    return functools.reduce(functools.partial(add, net), sums)


def _scales_rows(call: OpCall) -> bool:
    """One scale for all, or one for each row on the left and each column on the right."""
    left, right = (fake(call, name) for name in ("scale_a", "scale_b"))
    rows, columns = call.outputs[0].shape
    if left.numel() == right.numel() == 1:
        return True
    return left.dim() == right.dim() == 2 and tuple(left.shape) == (rows, 1) and tuple(right.shape) == (1, columns)


@converter(
    aten._scaled_mm.default,
    Support(
        dtypes=FP8,
        arguments={"scale_a": frozenset({torch.float32}), "scale_b": frozenset({torch.float32}), "bias": FLOATS},
        results=FLOATS,
        ranks=range(2, 3),
        rules=(Equals("scale_result", None), Requires("scales of tensors, or of rows and columns", _scales_rows)),
        ignores=("out_dtype", "use_fast_accum"),
    ),
)
def scaled_mm(net: Network, self: Value, mat2: Value, scale_a: Value, scale_b: Value, bias: Value | None, result: Result) -> Value:
    """``_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, ...)``: fp8 ``[M, K], [K, N]``."""
    product = net.add(MatrixMultiply(), *(widened(net, item) for item in (self, mat2)))
    for scale in (scale_a, scale_b):
        product = mul(net, product, scale if scale.rank == 2 else reshape(net, scale, (1, 1)))
    if bias is not None:
        product = add(net, product, cast(net, bias, torch.float32))
    return cast(net, product, result.dtype)
