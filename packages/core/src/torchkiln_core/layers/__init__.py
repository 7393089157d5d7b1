"""The layers of a network, one dataclass each, mirroring TensorRT's layers."""

from __future__ import annotations

from torchkiln_core.layers.indexing import Concatenation, Gather, GatherMode, Scatter, ScatterMode, Slice, SliceMode
from torchkiln_core.layers.linear import Convolution, Deconvolution, MatrixMultiply, MatrixOp, Pooling, PoolingKind
from torchkiln_core.layers.pointwise import Activation, ActivationKind, Cast, Elementwise, ElementwiseOp, Select, Unary, UnaryOp
from torchkiln_core.layers.reduction import Cumulative, CumulativeOp, Normalization, Reduce, ReduceOp, Softmax, TopK, TopKOp
from torchkiln_core.layers.resampling import GridSample, Interpolation, Resize, ResizeCoordinates, ResizeRounding, ResizeSelector
from torchkiln_core.layers.shape import Shape, Shuffle
from torchkiln_core.layers.source import Constant, Linspace

__all__ = [
    "Activation",
    "ActivationKind",
    "Cast",
    "Concatenation",
    "Constant",
    "Convolution",
    "Cumulative",
    "CumulativeOp",
    "Deconvolution",
    "Elementwise",
    "ElementwiseOp",
    "Gather",
    "GatherMode",
    "GridSample",
    "Interpolation",
    "Linspace",
    "MatrixMultiply",
    "MatrixOp",
    "Normalization",
    "Pooling",
    "PoolingKind",
    "Reduce",
    "ReduceOp",
    "Resize",
    "ResizeCoordinates",
    "ResizeRounding",
    "ResizeSelector",
    "Scatter",
    "ScatterMode",
    "Select",
    "Shape",
    "Shuffle",
    "Slice",
    "SliceMode",
    "Softmax",
    "TopK",
    "TopKOp",
    "Unary",
    "UnaryOp",
]
