"""Differences between TensorRT and the semantics of our layers that are known and stated in the docstrings of the layers."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

_HALF_NAN = "NaN in half precisions is kept by CLIP and becomes 1 in HARD_SIGMOID"
_EXTREME = "MAX and MIN of NaN or of zeros of two signs may give either operand"
_ALL_NAN = "MAX and MIN of nothing but NaN are NaN with static shapes"
_NO_RUNNER = "TensorRT-RTX has no layers whose results have sizes that depend on data"
_WEIGHT_0 = "pixels of weight 0 count along every dimension, so that results beside an infinity are NaN"
_NEAR_TIE = "half precisions are divided in their own precision, so that results near a tie may round to the other side"
_OVERFLOW = "GELU of the largest finite number is infinite"

KNOWN: Mapping[str, str] = {
    "Activation/RELU edges/*": "RELU of -0.0 is -0.0",
    "Activation/CLIP edges/float16": _HALF_NAN,
    "Activation/CLIP edges/bfloat16": _HALF_NAN,
    "Activation/HARD_SIGMOID edges/float16": _HALF_NAN,
    "Activation/HARD_SIGMOID edges/bfloat16": _HALF_NAN,
    "Activation/GELU_ERF edges/*": _OVERFLOW,
    "Activation/GELU_TANH edges/*": _OVERFLOW,
    "Elementwise/MAX NaN and zeros/*": _EXTREME,
    "Elementwise/MIN NaN and zeros/*": _EXTREME,
    "Elementwise/FLOOR_DIV edges/*float*": "FLOOR_DIV of an infinity is infinite",
    "Reduce/MAX edges/float*": _ALL_NAN,
    "Reduce/MIN edges/float*": _ALL_NAN,
    "Reduce/SUM edges/float*": "SUM of nothing but -0.0 may be -0.0",
    "Reduce/AVG edges/float*": "AVG of nothing but -0.0 may be -0.0, and sums in float16 overflow",
    "TopK/MIN edges/*float*": "MIN gives NaN a wrong index",
    "Resize/LINEAR edges/*": _WEIGHT_0,
    "Resize/CUBIC edges/*": _WEIGHT_0,
    "Resize/NEAREST HALF_PIXEL CEIL/*": "CEIL of a place that is a whole number may be one more",
    "Quantize/*/*float16": _NEAR_TIE,
    "Attention/bool mask that hides all/*float16": "in half precisions a query whose mask hides every key gets 0",
    "NonZero/*": _NO_RUNNER,
    "NMS/*": _NO_RUNNER,
    "KVCacheUpdate/*": "TensorRT writes caches in place, and engines bind inputs and outputs apart",
    "Deconvolution/*/bfloat16": "there is no deconvolution in bfloat16",
}
"""What differs, by a pattern of row names (``Activation/RELU edges/*``). A pattern that matches no difference any more is an error."""


def known_difference(name: str) -> str | None:
    """The statement about the row ``name``, if there is one."""
    return next((text for pattern, text in KNOWN.items() if fnmatch.fnmatchcase(name, pattern)), None)
