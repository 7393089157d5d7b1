"""The calls of made-up programs on elements and shapes.

A call takes any tensors and makes of them what its operator takes; where eager still refuses them, the program has another call there.
Eager leaves no choice in any of them: no indices of equal elements in an order that is not stable, no places that are written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from fuzz_values import EDGE, F, T, apart, as_float, as_number, bounded, filled, holed, index, like, small, truths, whole

Unary = Callable[[T], T]
Binary = Callable[[T, T], T]
LIMIT = 3.0


def _write(x: T, value: T) -> T:
    x.copy_(value.expand(x.shape).to(x.dtype))
    return x


def _add_in_place(x: T, y: T) -> T:
    return x.logical_xor_(y.expand(x.shape).bool()) if x.dtype is torch.bool else x.add_(y.expand(x.shape).to(x.dtype))


def _shift(y: T) -> T:
    return whole(y).abs().clamp(max=7)


def _few(x: T, count: int) -> T:
    """Up to ``count`` of the elements ``[*, N]`` of each row."""
    return x[..., :count]


def _reductions(count: int) -> dict[str, Unary]:
    """Reductions of ``count`` elements at most, with dimensions kept and dropped."""
    calls: dict[str, Unary] = {
        "sum": lambda x: _few(bounded(x), count).sum(-1),
        "sum kept": lambda x: _few(bounded(x), count).sum(-1, keepdim=True),
        "mean": lambda x: _few(small(x), count).mean(-1),
        "prod": lambda x: _few(as_number(x).clamp(-8, 8), count).prod(-1),
        "prod kept": lambda x: _few(as_number(x).clamp(-8, 8), count).prod(-1, keepdim=True),
        "amax": lambda x: _few(as_number(x), count).amax(-1),
        "amin kept": lambda x: _few(as_number(x), count).amin(-1, keepdim=True),
        "var": lambda x: _few(small(x), count).var(-1, correction=0),
        "norm kept": lambda x: torch.linalg.vector_norm(_few(small(x), count), dim=-1, keepdim=True),
        "logsumexp": lambda x: _few(small(x), count).logsumexp(-1),
        "all": lambda x: _few(truths(x), count).all(-1),
        "any kept": lambda x: _few(truths(x), count).any(-1, keepdim=True),
        "argmax": lambda x: _few(whole(x), count).argmax(-1),
        "argmin kept": lambda x: _few(whole(x), count).argmin(-1, keepdim=True),
        "amax of two": lambda x: as_number(x)[:count, ..., :count].amax((0, -1)),
        "sum of two kept": lambda x: bounded(x)[:count, ..., :count].sum((0, -1), keepdim=True),
        "minus largest": lambda x: _few(as_number(x), count) - _few(as_number(x), count).amax(-1, keepdim=True),
    }
    return {f"{name} ({count})": call for name, call in calls.items()}


_PLAIN: Mapping[str, Unary] = {
    "neg": lambda x: -as_number(x),
    "abs": lambda x: as_number(x).abs(),
    "relu": lambda x: torch.relu(as_number(x)),
    "tanh": lambda x: torch.tanh(as_float(x)),
    "exp": lambda x: torch.exp(as_float(x).clamp(-LIMIT, LIMIT)),
    "sigmoid": lambda x: torch.sigmoid(as_float(x)),
    "gelu": lambda x: F.gelu(as_float(x)),
    "log1p": lambda x: torch.log1p(as_float(x).abs()),
    "to float": lambda x: x.to(torch.float32),
    "to int": lambda x: (
        (as_float(x) * 4).clamp(-64, 64).to(torch.int32).to(torch.int64) if not x.is_floating_point() else as_number(x > EDGE)
    ),
    "positive": lambda x: as_number(x) > 0,
    "softmax": lambda x: torch.softmax(as_float(x), -1),
    "layer_norm": lambda x: F.layer_norm(as_float(x), x.shape[-1:]) if x.dim() else as_float(x),
    "cumsum": lambda x: torch.cumsum(bounded(x), 0),
    "sum": lambda x: bounded(x).sum(-1, keepdim=True) if x.dim() else as_number(x),
    "sum all": lambda x: bounded(x).sum(),
    "mean": lambda x: as_float(x).mean(0) if x.dim() else as_float(x),
    "amax": lambda x: as_number(x).amax(-1) if x.dim() else as_number(x),
    "any": lambda x: x.any(-1) if x.dim() else x.bool(),
    "transpose": lambda x: x.transpose(0, -1) if x.dim() else x,
    "flatten": lambda x: x.reshape(-1),
    "view": lambda x: x.reshape(1, *x.shape),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x.squeeze(),
    "select": lambda x: x.select(0, -1),
    "slice": lambda x: x[1:],
    "step": lambda x: x[..., ::2],
    "narrow": lambda x: x.narrow(-1, 0, max(x.shape[-1] - 1, 1)),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, -1),
    "expand": lambda x: x.expand(2, *x.shape),
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: torch.split(x, 2)[-1],
    "unbind": lambda x: x.unbind(0)[0],
    "pad": lambda x: F.pad(as_number(x), (1, 0)),
    "clone": lambda x: x.clone(),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(1),
    "relu_": lambda x: x.relu_() if x.dtype is not torch.bool else x.logical_not_(),
    "mul_": lambda x: x.mul_(2).clamp_(-64, 64) if x.dtype is not torch.bool else x.logical_and_(x),
    "write row": lambda x: _write(x[0], x[-1]),
    "increment slice": lambda x: _add_in_place(x[..., :1], x[..., -1:]),
    "roll all": lambda x: x.roll(-2),
    "roll two": lambda x: x.roll((1, -1), (0, -1)),
    "flip two": lambda x: x.flip(0, -1),
    "flip last": lambda x: x.flip(-1),
}
_POINTWISE: Mapping[str, Unary] = {
    "erfc": lambda x: torch.erfc(as_float(x)),
    "signbit": lambda x: torch.signbit(apart(x)),
    "minus column": lambda x: as_number(x) - as_number(x)[..., :1],
    "minus last row": lambda x: as_number(x) - as_number(x)[-1:],
    "times column": lambda x: bounded(x) * bounded(x)[..., 1:2],
    "over column": lambda x: small(x) / (small(x)[..., :1].abs() + 1),
    "largest with row": lambda x: torch.maximum(as_number(x), as_number(x)[:1]),
    "where row": lambda x: torch.where(truths(x), x[:1], x),
}
_BITS: Mapping[str, Unary] = {
    "to int32": lambda x: whole(x).to(torch.int32),
    "to int64": lambda x: whole(x).to(torch.int64),
    "not": lambda x: ~(x if x.dtype is torch.bool else whole(x)),
    "and number": lambda x: whole(x) & 13,
    "and negative": lambda x: whole(x) & -6,
    "or number": lambda x: whole(x) | 5,
    "or negative": lambda x: whole(x) | -12,
    "xor number": lambda x: whole(x) ^ 21,
    "xor negative": lambda x: whole(x) ^ -3,
    "number and": lambda x: torch.bitwise_and(-10, whole(x)),
    "number xor": lambda x: torch.bitwise_xor(9, whole(x)),
    "shift left": lambda x: whole(x) << 3,
    "shift right": lambda x: whole(x) >> 2,
    "number shift left": lambda x: torch.bitwise_left_shift(-3, _shift(x)),
    "number shift right": lambda x: torch.bitwise_right_shift(-100, _shift(x)),
}
_SCANS: Mapping[str, Unary] = {
    "cummax": lambda x: torch.cummax(as_number(x), -1).values,
    "cummin": lambda x: torch.cummin(as_number(x), 0).values,
    "cummax of truths": lambda x: torch.cummax(truths(x), -1).values,
    "cummax places": lambda x: torch.cummax(whole(x), 0).indices,
    "cummin places": lambda x: torch.cummin(whole(x), -1).indices,
    "cummax of nan": lambda x: filled(torch.cummax(holed(x), -1).values),
    "cummin of nan": lambda x: filled(torch.cummin(holed(x), 0).values),
    "logcumsumexp": lambda x: torch.logcumsumexp(small(x), -1),
    "logcumsumexp of nothing": lambda x: filled(torch.logcumsumexp(as_float(x).masked_fill(~truths(x), float("-inf")), 0)),
    "cumprod": lambda x: torch.cumprod(as_number(x).clamp(-2, 2), -1),
}
_ORDERS: Mapping[str, Unary] = {
    "median": lambda x: as_number(x).median(-1).values,
    "median all": lambda x: as_number(x).median(),
    "median of nan": lambda x: filled(holed(x).median(-1, keepdim=True).values),
    "nanmedian": lambda x: filled(holed(x).nanmedian(-1).values),
    "nanmedian kept": lambda x: filled(holed(x).nanmedian(0, keepdim=True).values),
    "nanmedian all": lambda x: filled(holed(x).nanmedian()),
    "kthvalue": lambda x: as_number(x).kthvalue(1 + x.shape[-1] // 2, -1, keepdim=True).values,
    "kthvalue first": lambda x: as_number(x).kthvalue(1, 0).values,
    "kthvalue of nan": lambda x: filled(holed(x).kthvalue(2, -1).values),
    "sort": lambda x: x.sort(-1).values,
    "sort falling": lambda x: x.sort(0, descending=True).values,
    "sort of nan": lambda x: filled(holed(x).sort(-1).values),
    "sort stable": lambda x: whole(x).sort(stable=True, dim=-1).indices,
    "sort falling stable": lambda x: whole(x).sort(stable=True, dim=0, descending=True).indices,
    "argsort": lambda x: whole(x).argsort(stable=True, dim=0),
    "argsort truths": lambda x: truths(x).argsort(stable=True, dim=-1, descending=True),
    "msort": lambda x: as_number(x).msort(),
    "topk": lambda x: as_number(x).topk(max(x.shape[-1] // 2, 1), -1).values,
    "topk least": lambda x: as_number(x).topk(2, 0, largest=False).values,
    "topk one": lambda x: as_float(x).topk(1, -1).values,
    "one_hot": lambda x: F.one_hot(index(x, 4), 4),
    "one_hot wide": lambda x: F.one_hot(index(x, 3), 6).to(torch.float32),
}
UNARY: Mapping[str, Unary] = {
    **_PLAIN,
    **_POINTWISE,
    **_BITS,
    **_SCANS,
    **_ORDERS,
    **{name: call for count in (1, 2, 3, 6) for name, call in _reductions(count).items()},
}
BINARY: Mapping[str, Binary] = {
    "add": lambda x, y: bounded(x) + bounded(y),
    "sub": lambda x, y: bounded(x) - bounded(y),
    "mul": lambda x, y: bounded(x) * bounded(y),
    "div": lambda x, y: as_float(x) / (as_float(y).abs() + 1),
    "floor_divide": lambda x, y: bounded(x).to(torch.int64) // (y.bool().to(torch.int64) * 3 - 5) if not x.is_floating_point() else x,
    "maximum": lambda x, y: torch.maximum(as_number(x), as_number(y)),
    "where": lambda x, y: torch.where(x.bool() if x.dtype is torch.bool else x > EDGE, y, torch.zeros_like(y)),
    "equal": lambda x, y: x == y if not (x.is_floating_point() or y.is_floating_point()) else x > EDGE,
    "and": lambda x, y: x.bool() & y.bool() if x.dtype is torch.bool else as_number(x),
    "cat": lambda x, y: torch.cat([x, y.to(x.dtype)], 0),
    "stack": lambda x, y: torch.stack([x, y.to(x.dtype)]),
    "matmul": lambda x, y: torch.tanh(as_float(x)) @ torch.tanh(as_float(y)),
    "gather": lambda x, y: x.index_select(0, (y.reshape(-1)[:3].bool()).to(torch.int64)),
    "masked_fill": lambda x, y: x.masked_fill(y.bool() if y.dtype is torch.bool else y > EDGE, 0),
    "copy_": _write,
    "add_": _add_in_place,
    "copysign": lambda x, y: torch.copysign(as_number(x), apart(y)),
    "bits and": lambda x, y: whole(x) & whole(y),
    "bits or": lambda x, y: whole(x) | whole(y),
    "bits xor": lambda x, y: whole(x) ^ whole(y),
    "truths xor": lambda x, y: truths(x) ^ truths(y),
    "bits shift left": lambda x, y: whole(x) << _shift(y),
    "bits shift right": lambda x, y: whole(x) >> _shift(y),
    "put": lambda x, y: x.put(torch.tensor([1, -1]), like(y, x).reshape(-1)[:2]),
    "put adding": lambda x, y: bounded(x).put(index(y, x.numel()), like(y, bounded(x)), accumulate=True),
    "take": lambda x, y: x.take(index(y, x.numel())),
    "gather last": lambda x, y: x.gather(-1, index(y, x.shape[-1])),
    "index_add": lambda x, y: bounded(x).index_add(0, index(y, x.shape[0]).reshape(-1)[:2], bounded(x)[:2]),
    "minus part": lambda x, y: bounded(x) - bounded(y)[..., :1],
}
IN_PLACE = frozenset({"zero_", "fill_", "relu_", "mul_", "write row", "increment slice", "copy_", "add_"})
