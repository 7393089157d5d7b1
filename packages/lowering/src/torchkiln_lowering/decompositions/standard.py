"""The decompositions of torchkiln, all families in one table."""

from __future__ import annotations

from types import MappingProxyType

from torchkiln_lowering.decompositions.accumulate import ACCUMULATE
from torchkiln_lowering.decompositions.attention import ATTENTION
from torchkiln_lowering.decompositions.bags import BAGS
from torchkiln_lowering.decompositions.distance import DISTANCE
from torchkiln_lowering.decompositions.fake_quantize import FAKE_QUANTIZE
from torchkiln_lowering.decompositions.indexing import INDEXING
from torchkiln_lowering.decompositions.norms import NORMS
from torchkiln_lowering.decompositions.pointwise import POINTWISE
from torchkiln_lowering.decompositions.prims import PRIMS
from torchkiln_lowering.decompositions.softmax import SOFTMAX
from torchkiln_lowering.decompositions.table import Decompositions
from torchkiln_lowering.decompositions.truths import TRUTHS


def standard_decompositions() -> Decompositions:
    """Torchkiln's own decompositions; PyTorch's tables answer for every other operator."""
    return Decompositions(
        MappingProxyType(
            {**NORMS, **SOFTMAX, **ATTENTION, **POINTWISE, **ACCUMULATE, **INDEXING, **DISTANCE, **BAGS, **TRUTHS, **FAKE_QUANTIZE, **PRIMS}
        )
    )
