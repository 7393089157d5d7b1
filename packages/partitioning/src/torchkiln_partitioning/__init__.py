"""Division of a lowered program into engine and PyTorch segments."""

from torchkiln_partitioning.cost import CostModel, SegmentWork
from torchkiln_partitioning.describe import BorderTensor, SegmentDescription, describe, is_operator
from torchkiln_partitioning.effects import graphs_of
from torchkiln_partitioning.executed_modules import module_stack
from torchkiln_partitioning.partitioner import BodyPartitioner, LevelPartitioner
from torchkiln_partitioning.shapes import input_specs
from torchkiln_partitioning.view import SIZE_READERS

__all__ = [
    "SIZE_READERS",
    "BodyPartitioner",
    "BorderTensor",
    "CostModel",
    "LevelPartitioner",
    "SegmentDescription",
    "SegmentWork",
    "describe",
    "graphs_of",
    "input_specs",
    "is_operator",
    "module_stack",
]
