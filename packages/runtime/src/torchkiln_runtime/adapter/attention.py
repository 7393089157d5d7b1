"""Layers of transformers."""

from __future__ import annotations

from typing import Any

from torchkiln_core import BuildError
from torchkiln_core.layers import Attention, CausalMask, KVCacheUpdate, RotaryEmbedding
from torchkiln_runtime.adapter.definition import Definition
from torchkiln_runtime.adapter.rotation import rotated


def attention(to: Definition, layer: Attention, query: Any, key: Any, value: Any, mask: Any | None = None) -> Any:
    """``IAttention``, which may become several kernels where no fused one fits.

    Raises:
        BuildError: The library has no attention, or none that counts from the ends.
    """
    operands = (query, key, value, _needed(to, "AttentionNormalizationOp", "attention").SOFTMAX)
    if hasattr(to.network, "add_attention_v2"):
        result = to.network.add_attention_v2(*operands, getattr(to.trt.CausalMaskKind, layer.causal.value))
    elif layer.causal is CausalMask.LOWER_RIGHT:
        raise BuildError(f"{_version(to)} has no causal attention that counts from the ends", fix="install a newer release of the library")
    else:
        result = to.network.add_attention(*operands, layer.causal is CausalMask.UPPER_LEFT)
    if result is None:
        return None
    result.decomposable = True
    if mask is not None:
        result.mask = mask
    return result


def rotary_embedding(to: Definition, layer: RotaryEmbedding, input: Any, cosine: Any, sine: Any, positions: Any | None = None) -> Any:
    """``IRotaryEmbeddingLayer``, or the layers that it stands for where the library has none."""
    if not hasattr(to.network, "add_rotary_embedding"):
        return rotated(to, layer, input, cosine, sine, positions)
    result = to.network.add_rotary_embedding(input, cosine, sine, layer.interleaved, layer.dim)
    if result is not None and positions is not None:
        result.set_input(3, positions)
    return result


def kv_cache_update(to: Definition, layer: KVCacheUpdate, cache: Any, update: Any, places: Any) -> Any:
    """``IKVCacheUpdateLayer``.

    Raises:
        BuildError: The library has none.
    """
    mode = _needed(to, "KVCacheMode", "update of caches").LINEAR
    return to.network.add_kv_cache_update(cache, update, places, mode)


def _needed(to: Definition, name: str, what: str) -> Any:
    found = getattr(to.trt, name, None)
    if found is None:
        raise BuildError(f"{_version(to)} has no {what}", fix="install a newer release of the library")
    return found


def _version(to: Definition) -> str:
    return f"{to.library.name} {to.library.version}"
