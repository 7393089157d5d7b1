"""Reshapes, transposes and expansions, with static or symbolic sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchkiln_core import Network, Size, Value
from torchkiln_core.inference import statically_equal
from torchkiln_core.layers import Shuffle, Slice


def same_size(net: Network, left: Size, right: Size) -> bool:
    """Whether two sizes are known to be equal."""
    return statically_equal(left, right, net.fake_mode) is True


def same_shape(net: Network, left: Sequence[Size], right: Sequence[Size]) -> bool:
    """Whether two shapes are known to be equal."""
    return len(left) == len(right) and all(same_size(net, a, b) for a, b in zip(left, right, strict=True))


def reshape(net: Network, value: Value, shape: Sequence[Size]) -> Value:
    """``[*] -> [*shape]``; the sizes must be resolved (no -1)."""
    if same_shape(net, value.shape, shape):
        return value
    symbolic = [index for index, size in enumerate(shape) if not isinstance(size, int)]
    known = [size for size in shape if isinstance(size, int)]
    if not symbolic:
        return net.add(Shuffle(dims=tuple(known)), value)
    if len(symbolic) == 1 and 0 not in known and _inferred(net, value, shape, math.prod(known)):
        return net.add(Shuffle(dims=tuple(size if isinstance(size, int) else -1 for size in shape)), value)
    return net.add(Shuffle(), value, net.size_tensor(tuple(shape)))


def _inferred(net: Network, value: Value, shape: Sequence[Size], known: int) -> bool:
    """Whether a -1 stands for exactly the one symbolic size of ``shape``."""
    (size,) = (size for size in shape if not isinstance(size, int))
    return same_size(net, product(value.shape), known * size)


def permute(net: Network, value: Value, order: Sequence[int]) -> Value:
    """Dimension ``i`` of the result is dimension ``order[i]`` of the value."""
    return value if list(order) == list(range(value.rank)) else net.add(Shuffle(first=tuple(order)), value)


def transpose(net: Network, value: Value, first: int, second: int) -> Value:
    """Swaps two dimensions, which may be negative."""
    order = list(range(value.rank))
    order[first], order[second] = order[second], order[first]
    return permute(net, value, order)


def unsqueeze(net: Network, value: Value, axis: int) -> Value:
    """Inserts a dimension of size 1 before ``axis`` of the value."""
    return reshape(net, value, (*value.shape[:axis], 1, *value.shape[axis:]))


def squeeze(net: Network, value: Value, axis: int) -> Value:
    """Removes the dimension ``axis``, of size 1."""
    return reshape(net, value, (*value.shape[:axis], *value.shape[axis + 1 :]))


def with_rank(net: Network, value: Value, rank: int) -> Value:
    """Prepends dimensions of size 1 up to ``rank``."""
    return reshape(net, value, (1,) * (rank - value.rank) + value.shape) if value.rank < rank else value


def expand(net: Network, value: Value, shape: Sequence[Size]) -> Value:
    """Broadcasts to ``shape``: dimensions of size 1 are repeated by a stride of 0."""
    value = with_rank(net, value, len(shape))
    if same_shape(net, value.shape, shape):
        return value
    stride = tuple(1 if same_size(net, have, want) else 0 for have, want in zip(value.shape, shape, strict=True))
    return window(net, value, (0,) * len(shape), shape, stride)


def window(net: Network, value: Value, start: Sequence[Size], size: Sequence[Size], stride: Sequence[int]) -> Value:
    """A strict slice: element ``i`` of a dimension is ``value[start + i * stride]``."""
    starts, sizes = static_sizes(start), static_sizes(size)
    return net.add(
        Slice(starts, sizes, tuple(stride)),
        value,
        net.size_tensor(tuple(start)) if starts is None else None,
        net.size_tensor(tuple(size)) if sizes is None else None,
    )


def static_sizes(sizes: Sequence[Size]) -> tuple[int, ...] | None:
    """The sizes as integers, or ``None`` when one is symbolic."""
    known = tuple(size for size in sizes if isinstance(size, int))
    return known if len(known) == len(sizes) else None


def axis_of(axis: int, rank: int) -> int:
    """A dimension number of PyTorch, which may be negative, in ``[0, max(rank, 1))``."""
    return axis + max(rank, 1) if axis < 0 else axis


def axes_of(axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimension numbers of PyTorch, where ``None`` and none at all mean every dimension."""
    return tuple(range(rank)) if not axes else tuple(sorted({axis_of(axis, rank) for axis in axes}))


def product(sizes: Sequence[Size]) -> Size:
    """The number of elements of a shape."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def spread(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """One value for every dimension, from an ATen argument that may give one for all."""
    return values * rank if len(values) == 1 else values
