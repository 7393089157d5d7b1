"""Division of a lowered program into engine and PyTorch segments."""

from torchkiln_partitioning.partitioner import LevelPartitioner
from torchkiln_partitioning.shapes import input_specs

__all__ = ["LevelPartitioner", "input_specs"]
