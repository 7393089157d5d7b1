"""Layers of transformers: attention, rotary embedding and the update of a cache of keys or values."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import floating, is_real, same_dtype
from torchkiln_core.network import Layer
from torchkiln_core.size import size_of


class CausalMask(enum.Enum):
    """``trt.CausalMaskKind``: which keys a query sees: all, those up to its own place, or those up to its place counted from the ends."""

    NONE = "NONE"
    UPPER_LEFT = "UPPER_LEFT"
    LOWER_RIGHT = "LOWER_RIGHT"


def _of_rank(kind: str, rank: int, **tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() != rank:
            raise InternalError(f"{kind}: expected {name} of rank {rank}, got rank {tensor.dim()}")


def _same_sizes(kind: str, what: str, left: torch.Tensor, right: torch.Tensor, *dims: int) -> None:
    """Raises ``InternalError`` where two tensors are known to differ in size."""
    for dim in dims:
        if statically_known_true(left.shape[dim] != right.shape[dim]):
            raise InternalError(f"{kind}: expected {what} of one size in dimension {dim}, got {left.shape[dim]} and {right.shape[dim]}")


@dataclass(frozen=True, slots=True)
class Attention(Layer):
    """``softmax(query @ key^T + mask) @ value``, without a scale: the query is scaled before. Source: TensorRT operator page "Attention".

    Each group of ``N / N_kv`` heads of the query shares a head of key and value. A bool mask is true where a query sees a key, a floating
    one is added; it broadcasts. Sums and softmax are taken in float32 and rounded once; of a row in which all is masked it is NaN.

    Found on an H200 and not reproduced here: in half precisions a query whose mask hides every key gets 0.
    """

    causal: CausalMask = CausalMask.NONE

    def run(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """``[B, N, Q, H], [B, N_kv, K, H], [B, N_kv, K, H], [B or 1, N or 1, Q or 1, K] -> [B, N, Q, H]``, floating."""
        self._check(query, key, value, mask)
        if not is_real(query):
            return query.new_empty(query.shape)
        group = query.shape[1] // key.shape[1]
        keys, values = (tensor.to(torch.float32).repeat_interleave(group, 1) for tensor in (key, value))
        scores = query.to(torch.float32) @ keys.transpose(-1, -2)
        if self.causal is not CausalMask.NONE:
            rows, columns = scores.shape[-2:]
            offset = columns - rows if self.causal is CausalMask.LOWER_RIGHT else 0
            mask = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).tril(offset)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask.to(torch.float32)
        return (torch.softmax(scores, -1) @ values).to(query.dtype)

    def _check(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> None:
        floating("Attention", query)
        same_dtype("Attention", query, key, value)
        _of_rank("Attention", 4, query=query, key=key, value=value)
        _same_sizes("Attention", "key and value", key, value, 0, 1, 2, 3)
        _same_sizes("Attention", "query and key", query, key, 0, 3)
        if statically_known_true(query.shape[1] % key.shape[1] != 0):
            raise InternalError(f"Attention: expected a multiple of {key.shape[1]} query heads, got {query.shape[1]}")
        if mask is None:
            return
        if self.causal is not CausalMask.NONE:
            raise InternalError(f"Attention: expected a mask or a causal kind, got a mask and {self.causal.value}")
        if mask.dtype is not torch.bool:
            same_dtype("Attention", query, mask)
        _of_rank("Attention", 4, mask=mask)
        for dim, size in enumerate((query.shape[0], query.shape[1], query.shape[2], key.shape[2])):
            if statically_known_true(mask.shape[dim] != size) and (dim == 3 or statically_known_true(mask.shape[dim] != 1)):
                raise InternalError(f"Attention: expected a mask of size {size} in dimension {dim}, got {mask.shape[dim]}")


@dataclass(frozen=True, slots=True)
class RotaryEmbedding(Layer):
    """Rotates pairs of features by the angle of their position. Source: TensorRT operator page "RotaryEmbedding".

    The first ``dim`` features take part (0: all of them). Pairs are neighbours if ``interleaved``, else the features ``i`` and
    ``i + dim / 2``. A pair ``(a, b)`` becomes ``(a cos - b sin, a sin + b cos)``, in float32 and rounded once.
    """

    interleaved: bool
    dim: int = 0

    def run(self, input: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """``[B, N, S, H], [B, S, dim / 2] (twice) -> [B, N, S, H]``, floating; with positions int ``[B, S]`` of ``[count, dim / 2]``."""
        self._check(input, cosine, sine, positions)
        if not is_real(input):
            return input.new_empty(input.shape)
        if positions is not None:
            if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < cosine.shape[0]:
                raise IndexError(f"RotaryEmbedding: positions leave [0, {cosine.shape[0]})")
            cosine, sine = cosine[positions.to(torch.int64)], sine[positions.to(torch.int64)]
        cos, sin = (table.to(torch.float32).unsqueeze(1) for table in (cosine, sine))
        rotated = input[..., : 2 * cos.shape[-1]].to(torch.float32)
        angles = cos.shape[-1]
        pairs = rotated.reshape(*rotated.shape[:-1], *((angles, 2) if self.interleaved else (2, angles)))
        along = -1 if self.interleaved else -2
        first, second = pairs.unbind(along)
        result = torch.stack((first * cos - second * sin, first * sin + second * cos), along).flatten(-2)
        return torch.cat((result.to(input.dtype), input[..., 2 * cos.shape[-1] :]), -1)

    def _check(self, input: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, positions: torch.Tensor | None) -> None:
        kind = "RotaryEmbedding"
        floating(kind, input)
        same_dtype(kind, input, cosine, sine)
        _of_rank(kind, 4, input=input)
        _of_rank(kind, 3 if positions is None else 2, cosine=cosine, sine=sine)
        _same_sizes(kind, "cosine and sine", cosine, sine, *range(cosine.dim()))
        features = self.dim or input.shape[3]
        if statically_known_true(2 * cosine.shape[-1] != features) or statically_known_true(features > input.shape[3]):
            raise InternalError(f"{kind}: expected {features} / 2 angles for {input.shape[3]} features, got {cosine.shape[-1]}")
        if positions is not None and (positions.dtype not in (torch.int32, torch.int64) or positions.dim() != 2):
            raise InternalError(f"{kind}: expected int32 or int64 positions of rank 2, got {positions.dtype} of rank {positions.dim()}")
        places = cosine if positions is None else positions
        if statically_known_true(places.shape[0] != input.shape[0]) or statically_known_true(places.shape[1] != input.shape[2]):
            raise InternalError(f"{kind}: expected angles for [{input.shape[0]}, {input.shape[2]}], got {list(places.shape[:2])}")


@dataclass(frozen=True, slots=True)
class KVCacheUpdate(Layer):
    """A cache of keys or values with new ones written from a place of each sequence on. Source: TensorRT operator page "KVCacheUpdate".

    TensorRT writes in place: the cache must be an input of the network, the result an output, and both must be bound to one address.
    """

    def run(self, cache: torch.Tensor, update: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """``[B, N, S_max, H], [B, N, S, H], int32 [B] -> [B, N, S_max, H]``, floating; ``S_max`` is an integer."""
        kind = "KVCacheUpdate"
        floating(kind, cache)
        same_dtype(kind, cache, update)
        _of_rank(kind, 4, cache=cache, update=update)
        _of_rank(kind, 1, places=places)
        _same_sizes(kind, "cache and update", cache, update, 0, 1, 3)
        _same_sizes(kind, "cache and places", cache, places, 0)
        if places.dtype is not torch.int32:
            raise InternalError(f"{kind}: expected int32 places, got {places.dtype}")
        if not isinstance(size_of(cache.shape[2]), int) or statically_known_true(update.shape[2] > cache.shape[2]):
            raise InternalError(f"{kind}: expected a static size of {update.shape[2]} or more in dimension 2, got {cache.shape[2]}")
        if not is_real(cache):
            return cache.new_empty(cache.shape)
        index = places.to(torch.int64).unsqueeze(1) + torch.arange(update.shape[2], device=cache.device)
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < cache.shape[2]:
            raise IndexError(f"{kind}: places {places.tolist()[:8]} and {update.shape[2]} more leave a cache of {cache.shape[2]}")
        return torch.scatter(cache, 2, index[:, None, :, None].expand(update.shape), update)
