"""The calls of made-up programs that add products and resample: convolutions, pools, resizing, matrix products, attention, norms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from fuzz_calls import Binary, Unary
from fuzz_values import F, T, filled, small, truths, weights, whole


def _lines(x: T, channels: int = 1) -> T:
    """``[N, channels, L]`` of the last dimension of ``x``."""
    line = small(x).reshape(-1, 1, x.shape[-1])
    return torch.cat([line, line.flip(-1), line * 0.5, -line][:channels], 1)


def _planes(x: T, channels: int = 1) -> T:
    """``[N, channels, H, W]`` of the last two dimensions of ``x``."""
    plane = small(x).reshape(-1, 1, *x.shape[-2:])
    return torch.cat([plane, plane.flip(-1), plane.flip(-2) * 0.5, -plane][:channels], 1)


def _rows(x: T) -> T:
    """``[N, S, E]`` for attention."""
    return torch.tanh(small(x)).reshape(-1, *x.shape[-2:])


def _heads(x: T) -> T:
    """``[N, 2, S, E]``."""
    rows = _rows(x)
    return torch.stack([rows, -rows], 1)


def _attended(x: T, mask: T | None = None, *, is_causal: bool = False, scale: float | None = None) -> T:
    rows = _rows(x)
    return F.scaled_dot_product_attention(rows, rows.flip(-1), rows, mask, is_causal=is_causal, scale=scale)


def _pairs(x: T) -> T:
    """``[N, S, S]``, an element for each query and key."""
    rows = small(x).reshape(-1, *x.shape[-2:])
    return rows[..., :1] - rows[..., :1].transpose(-1, -2)


def _seeing(x: T) -> T:
    """A mask ``[N, S, S]`` by which each query sees at least its own key."""
    seen = _pairs(x) > 0.4
    return seen | torch.eye(seen.shape[-1], dtype=torch.bool)


def _grown(x: T, mode: str, **options: object) -> T:
    return F.interpolate(_lines(x) if mode in ("nearest", "linear") else _planes(x, 2), mode=mode, **options)  # type: ignore[arg-type]


_CONVOLUTIONS: Mapping[str, Unary] = {
    "conv1d": lambda x: F.conv1d(_lines(x), weights(2, 1, 2), weights(2), padding=1),
    "conv1d same": lambda x: F.conv1d(_lines(x, 2), weights(3, 2, 4), padding="same"),
    "conv1d same groups": lambda x: F.conv1d(_lines(x, 4), weights(4, 2, 3), weights(4), padding="same", dilation=2, groups=2),
    "conv1d valid": lambda x: F.conv1d(_lines(x), weights(1, 1, 2), padding="valid"),
    "conv1d stride": lambda x: F.conv1d(_lines(x, 2), weights(2, 1, 3), stride=2, padding=2, groups=2),
    "conv2d": lambda x: F.conv2d(_planes(x), weights(2, 1, 3, 2), weights(2), padding=(2, 0)),
    "conv2d same": lambda x: F.conv2d(_planes(x, 2), weights(1, 2, 2, 3), weights(1), padding="same"),
    "conv2d same groups": lambda x: F.conv2d(_planes(x, 2), weights(4, 1, 2, 2), padding="same", dilation=(1, 2), groups=2),
    "conv2d stride": lambda x: F.conv2d(_planes(x, 4), weights(4, 2, 3, 3), stride=(2, 1), padding=(1, 2), groups=2),
    "conv2d unbatched": lambda x: F.conv2d(small(x).reshape(1, -1, x.shape[-1]), weights(2, 1, 2, 2), padding=1),
    "conv_transpose1d": lambda x: F.conv_transpose1d(_lines(x), weights(1, 2, 3), weights(2), stride=2, padding=1, output_padding=1),
    "conv_transpose1d groups": lambda x: F.conv_transpose1d(_lines(x, 2), weights(2, 2, 2), stride=3, output_padding=2, groups=2),
    "conv_transpose1d wide": lambda x: F.conv_transpose1d(_lines(x, 2), weights(2, 1, 3), padding=2, dilation=2),
    "conv_transpose2d": lambda x: F.conv_transpose2d(
        _planes(x), weights(1, 2, 2, 3), weights(2), stride=(2, 1), padding=(0, 1), output_padding=(1, 0)
    ),
    "conv_transpose2d groups": lambda x: F.conv_transpose2d(
        _planes(x, 2), weights(2, 1, 3, 3), stride=2, padding=1, output_padding=1, groups=2
    ),
    "conv_transpose2d wide": lambda x: F.conv_transpose2d(
        _planes(x), weights(1, 1, 2, 2), stride=2, output_padding=(0, 1), dilation=(1, 2)
    ),
}
_POOLS: Mapping[str, Unary] = {
    "max_pool1d": lambda x: F.max_pool1d(_lines(x), 2, 2, 1, ceil_mode=True),
    "max_pool2d": lambda x: F.max_pool2d(_planes(x), (2, 1), (1, 2), (1, 0), dilation=(2, 1)),
    "avg_pool1d": lambda x: F.avg_pool1d(_lines(x), 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool2d": lambda x: F.avg_pool2d(_planes(x), (2, 3), 2, (1, 1), ceil_mode=True),
    "avg_pool2d divisor": lambda x: F.avg_pool2d(_planes(x), 2, (2, 1), (1, 0), divisor_override=3),
    "avg_pool2d divisor ceil": lambda x: F.avg_pool2d(_planes(x, 2), (3, 2), 2, 1, ceil_mode=True, divisor_override=5),
    "avg_pool2d ceil uncounted": lambda x: F.avg_pool2d(_planes(x), 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(_lines(x), 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(_planes(x), (2, 3)),
    "adaptive_max_pool2d half": lambda x: F.adaptive_max_pool2d(_planes(x, 2), (None, 3)),  # type: ignore[arg-type]
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(_lines(x), 3),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(_planes(x), (2, 3)),
    "adaptive_avg_pool2d large": lambda x: F.adaptive_avg_pool2d(_planes(x), (5, 3)),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(_planes(x, 3).unsqueeze(1), (2, 2, 3)),
}
_RESIZING: Mapping[str, Unary] = {
    "nearest": lambda x: _grown(x, "nearest", scale_factor=1.5),
    "nearest 2d": lambda x: F.interpolate(_planes(x), size=(5, 3), mode="nearest"),
    "nearest-exact": lambda x: _grown(x, "nearest-exact", size=(3, 5)),
    "linear": lambda x: _grown(x, "linear", size=5),
    "linear aligned": lambda x: _grown(x, "linear", scale_factor=2.0, align_corners=True),
    "bilinear resize": lambda x: _grown(x, "bilinear", size=(5, 3)),
    "bilinear aligned": lambda x: _grown(x, "bilinear", size=(2, 7), align_corners=True),
    "bilinear scaled": lambda x: _grown(x, "bilinear", scale_factor=(1.5, 0.75), recompute_scale_factor=False),
    "bilinear antialias": lambda x: _grown(x, "bilinear", size=(2, 3), antialias=True),
    "bicubic": lambda x: _grown(x, "bicubic", size=(4, 5)),
    "bicubic aligned": lambda x: _grown(x, "bicubic", scale_factor=2.0, align_corners=True),
    "bicubic antialias": lambda x: _grown(x, "bicubic", size=(2, 5), antialias=True),
    "trilinear": lambda x: F.interpolate(_planes(x, 3).unsqueeze(1), size=(2, 4, 3), mode="trilinear"),
    "trilinear aligned": lambda x: F.interpolate(_planes(x, 2).unsqueeze(1), size=(3, 2, 5), mode="trilinear", align_corners=True),
    "area": lambda x: _grown(x, "area", size=(2, 3)),
    "area 1d": lambda x: F.interpolate(_lines(x), size=3, mode="area"),
}
_ATTENTION: Mapping[str, Unary] = {
    "attention": _attended,
    "attention causal": lambda x: _attended(x, is_causal=True),
    "attention scaled": lambda x: _attended(x, scale=0.3),
    "attention seeing": lambda x: _attended(x, _seeing(x)),
    "attention blind": lambda x: filled(_attended(x, _pairs(x) > 0.4)),
    "attention biased": lambda x: _attended(x, _pairs(x) * 0.25),
    "attention biased beyond": lambda x: _attended(x, torch.zeros_like(_pairs(x)).masked_fill(~_seeing(x), float("-inf"))),
    "attention of one query": lambda x: F.scaled_dot_product_attention(_rows(x)[:, :1], _rows(x), _rows(x), _seeing(x)[:, :1]),
    "attention of heads": lambda x: F.scaled_dot_product_attention(_heads(x), _heads(x).flip(1), _heads(x)),
    "softmax of attention": lambda x: torch.softmax(_attended(x, _seeing(x)), -1),
    "softmax of masked": lambda x: torch.softmax(_pairs(x).masked_fill(~_seeing(x), float("-inf")), -1),
    "softmax of nothing": lambda x: filled(torch.softmax(_pairs(x).masked_fill(_pairs(x) > -0.4, float("-inf")), -1)),
    "log_softmax": lambda x: torch.log_softmax(small(x), 0),
}
_NORMS: Mapping[str, Unary] = {
    "layer_norm of one": lambda x: F.layer_norm(small(x)[..., :1], (1,), weights(1), weights(1), 1e-2),
    "layer_norm of two": lambda x: F.layer_norm(small(x)[..., :2], (2,), weights(2), None, 1e-2),
    "layer_norm of three": lambda x: F.layer_norm(small(x)[..., :3], (3,), weights(3), weights(3), 1e-2),
    "layer_norm of two dims": lambda x: F.layer_norm(small(x), x.shape[-2:], eps=1e-2),
    "group_norm": lambda x: F.group_norm(_lines(x, 4), 2, weights(4), weights(4), 1e-2),
    "group_norm of each": lambda x: F.group_norm(_lines(x, 2), 2, None, None, 1e-2),
    "group_norm 2d": lambda x: F.group_norm(_planes(x, 2), 1, weights(2), eps=1e-2),
    "group_norm narrow": lambda x: F.group_norm(_lines(x, 4)[..., 0], 2, weights(4), weights(4), 1e-2),
    "instance_norm": lambda x: F.instance_norm(_lines(x, 2), weight=weights(2), bias=weights(2), eps=1e-2),
    "batch_norm": lambda x: F.batch_norm(_lines(x, 2), weights(2), weights(2).abs() + 1, weights(2), weights(2)),
    "rms_norm": lambda x: F.rms_norm(small(x), x.shape[-1:], eps=1e-2),
    "normalize": lambda x: F.normalize(small(x), dim=-1, eps=0.5),
}
_PRODUCTS: Mapping[str, Unary] = {
    "linear layer": lambda x: F.linear(small(x)[..., :2], weights(3, 2), weights(3)),
    "times matrix": lambda x: small(x)[..., :3] @ weights(3, 4),
    "matrix times": lambda x: weights(2, 3) @ small(x)[..., :3, :],
    "times vector": lambda x: small(x)[..., :3] @ weights(3),
    "vector times": lambda x: weights(3) @ small(x)[..., :3, :],
    "own product": lambda x: small(x).flatten() @ small(x).flatten(),
    "whole product": lambda x: whole(x).reshape(-1, x.shape[-1]) @ whole(x).reshape(-1, x.shape[-1]).t(),
    "whole times vector": lambda x: whole(x).reshape(-1, x.shape[-1]) @ whole(x).reshape(-1)[: x.shape[-1]],
    "whole times matrix": lambda x: whole(x).to(torch.int64)[..., :2] @ torch.tensor([[3, -1, 0], [7, 2, -5]]),
    "einsum diagonal": lambda x: torch.einsum("...ii->...i", small(x)[..., :2, :2]),
    "einsum rows": lambda x: torch.einsum("...ij,...ij->...i", small(x), small(x)),
    "einsum transposed": lambda x: torch.einsum("...ij->...ji", small(x)),
    "einsum outer": lambda x: torch.einsum("...i,...j->...ij", small(x), small(x)),
    "einsum weights": lambda x: torch.einsum("...i,ij,...j->...", small(x)[..., :2], weights(2, 2), small(x)[..., :2]),
    "einsum whole": lambda x: torch.einsum("...i,...j->...ji", whole(x), whole(x)),
    "bilinear": lambda x: F.bilinear(small(x)[..., :2], small(x)[..., -3:], weights(2, 2, 3), weights(2)),
}
UNARY: Mapping[str, Unary] = {**_CONVOLUTIONS, **_POOLS, **_RESIZING, **_ATTENTION, **_NORMS, **_PRODUCTS}
BINARY: Mapping[str, Binary] = {
    "conv1d by": lambda x, y: F.conv1d(_lines(x), torch.tanh(small(y)).reshape(1, 1, -1)[..., :2], padding=1),
    "whole matmul": lambda x, y: whole(x) @ whole(y),
    "whole matmul transposed": lambda x, y: whole(x) @ whole(y).transpose(-1, -2),
    "matmul transposed": lambda x, y: small(x) @ small(y).mT,
    "matmul vector": lambda x, y: small(x) @ small(y).reshape(-1)[: x.shape[-1]],
    "vector matmul": lambda x, y: small(x).reshape(-1)[: y.shape[-2]] @ small(y),
    "einsum products": lambda x, y: torch.einsum("...ij,...kj->...ik", small(x), small(y)),
    "einsum vector": lambda x, y: torch.einsum("...i,i->...", small(x), small(y)),
    "outer": lambda x, y: torch.outer(small(x).flatten(), small(y).flatten()),
    "whole outer": lambda x, y: torch.outer(whole(x).flatten(), whole(y).flatten()),
    "addmm": lambda x, y: torch.addmm(small(y), small(x)[..., :2], weights(2, 4), beta=0.5, alpha=2),
    "bilinear of two": lambda x, y: F.bilinear(small(x)[..., :2], small(y)[..., :2], weights(3, 2, 2)),
    "attention across": lambda x, y: F.scaled_dot_product_attention(_rows(x), _rows(y), _rows(y)),
    "attention masked": lambda x, y: filled(_attended(x, truths(y)[..., :1])),
}
