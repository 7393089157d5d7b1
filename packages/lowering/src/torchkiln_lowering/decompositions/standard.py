"""The decompositions of torchkiln, all families in one table."""

from __future__ import annotations

from types import MappingProxyType

from torchkiln_lowering.decompositions.accumulate import ACCUMULATE
from torchkiln_lowering.decompositions.antialias import ANTIALIAS
from torchkiln_lowering.decompositions.attention import ATTENTION
from torchkiln_lowering.decompositions.bags import BAGS
from torchkiln_lowering.decompositions.bilinear import BILINEAR
from torchkiln_lowering.decompositions.bits import BITS
from torchkiln_lowering.decompositions.distance import DISTANCE
from torchkiln_lowering.decompositions.fake_quantize import FAKE_QUANTIZE
from torchkiln_lowering.decompositions.indexing import INDEXING
from torchkiln_lowering.decompositions.integer_products import INTEGER_PRODUCTS
from torchkiln_lowering.decompositions.norms import NORMS
from torchkiln_lowering.decompositions.order_statistics import ORDER_STATISTICS
from torchkiln_lowering.decompositions.pointwise import POINTWISE
from torchkiln_lowering.decompositions.pools import POOLS
from torchkiln_lowering.decompositions.prims import PRIMS
from torchkiln_lowering.decompositions.recurrent import RECURRENT
from torchkiln_lowering.decompositions.scans import SCANS
from torchkiln_lowering.decompositions.softmax import SOFTMAX
from torchkiln_lowering.decompositions.sorting import SORTING
from torchkiln_lowering.decompositions.table import Decompositions
from torchkiln_lowering.decompositions.truths import TRUTHS

_FAMILIES = (
    NORMS,
    SOFTMAX,
    ATTENTION,
    POINTWISE,
    SCANS,
    ORDER_STATISTICS,
    SORTING,
    ACCUMULATE,
    INDEXING,
    DISTANCE,
    BAGS,
    POOLS,
    ANTIALIAS,
    TRUTHS,
    BITS,
    FAKE_QUANTIZE,
    PRIMS,
    RECURRENT,
    BILINEAR,
    INTEGER_PRODUCTS,
)


def standard_decompositions() -> Decompositions:
    """Torchkiln's own decompositions; PyTorch's tables answer for every other operator."""
    return Decompositions(MappingProxyType({target: rule for family in _FAMILIES for target, rule in family.items()}))
