"""The passes that every program goes through unless the user takes one out."""

from __future__ import annotations

from torchkiln_lowering.passes.absorb import absorb_bias, absorb_padding
from torchkiln_lowering.passes.asserts import remove_proven_checks
from torchkiln_lowering.passes.common import share_equal_calls
from torchkiln_lowering.passes.constants import fold_constants
from torchkiln_lowering.passes.dropout import remove_dropout
from torchkiln_lowering.passes.lower_rank import lower_rank
from torchkiln_lowering.passes.merging import merge_casts, merge_reshapes, merge_transposes
from torchkiln_lowering.passes.noops import remove_noops
from torchkiln_lowering.passes.raise_attention import raise_attention
from torchkiln_lowering.passes.raise_gelu import raise_gelu
from torchkiln_lowering.passes.raise_layer_norm import raise_group_norm, raise_layer_norm
from torchkiln_lowering.passes.raise_rms_norm import raise_rms_norm
from torchkiln_lowering.passes.raise_rotary import raise_rotary_embedding
from torchkiln_lowering.passes.split_complex import split_complex
from torchkiln_lowering.passes.widen_quantized import widen_quantized
from torchkiln_lowering.pipeline import Pass, Pipeline


def standard_pipeline() -> Pipeline:
    """Clean up, then merge what is left, then raise patterns to the operators that they spell out."""
    return Pipeline(
        (
            Pass("remove_dropout", remove_dropout),
            Pass("split_complex", split_complex),
            Pass("lower_rank", lower_rank),
            Pass("remove_proven_checks", remove_proven_checks),
            Pass("widen_quantized", widen_quantized),
            Pass("merge_casts", merge_casts),
            Pass("merge_transposes", merge_transposes),
            Pass("merge_reshapes", merge_reshapes),
            Pass("remove_noops", remove_noops, after=("remove_dropout",)),
            Pass("share_equal_calls", share_equal_calls, after=("remove_noops",)),
            Pass("fold_constants", fold_constants),
            Pass("absorb_padding", absorb_padding),
            Pass("absorb_bias", absorb_bias),
            Pass("raise_gelu", raise_gelu, after=("share_equal_calls",)),
            Pass("raise_attention", raise_attention, after=("share_equal_calls", "fold_constants")),
            Pass("raise_rotary_embedding", raise_rotary_embedding, after=("share_equal_calls", "fold_constants")),
            Pass("raise_group_norm", raise_group_norm, after=("share_equal_calls",)),
            Pass("raise_layer_norm", raise_layer_norm, after=("share_equal_calls",)),
            Pass("raise_rms_norm", raise_rms_norm, after=("share_equal_calls",)),
        )
    )
