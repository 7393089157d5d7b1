"""The passes that every program goes through unless the user takes one out."""

from __future__ import annotations

from torchkiln_lowering.passes.asserts import remove_proven_checks
from torchkiln_lowering.passes.common import share_equal_calls
from torchkiln_lowering.passes.dropout import remove_dropout
from torchkiln_lowering.passes.noops import remove_noops
from torchkiln_lowering.pipeline import Pass, Pipeline


def standard_pipeline() -> Pipeline:
    """Dropout, checks, calls that change nothing, equal calls."""
    return Pipeline(
        (
            Pass("remove_dropout", remove_dropout),
            Pass("remove_proven_checks", remove_proven_checks),
            Pass("remove_noops", remove_noops, after=("remove_dropout",)),
            Pass("share_equal_calls", share_equal_calls, after=("remove_noops",)),
        )
    )
