"""The layers of a network, one dataclass each, mirroring TensorRT's layers."""

from __future__ import annotations

from torchkiln_core.layers.attention import Attention, CausalMask, KVCacheUpdate, RotaryEmbedding
from torchkiln_core.layers.control_flow import (
    Collected,
    IfConditional,
    Iterated,
    Loop,
    LoopOutput,
    operand_input,
    recurrence_input,
    slice_input,
)
from torchkiln_core.layers.data_dependent import NMS, BoxFormat, NonZero
from torchkiln_core.layers.indexing import Concatenation, Gather, GatherMode, OneHot, Scatter, ScatterMode, Slice, SliceMode
from torchkiln_core.layers.linear import Convolution, Deconvolution, Einsum, MatrixMultiply, MatrixOp, Pooling, PoolingKind
from torchkiln_core.layers.pointwise import (
    Activation,
    ActivationKind,
    Cast,
    Elementwise,
    ElementwiseOp,
    ParametricRelu,
    Select,
    Unary,
    UnaryOp,
)
from torchkiln_core.layers.quantization import Dequantize, Quantize
from torchkiln_core.layers.reduction import Cumulative, CumulativeOp, Normalization, Reduce, ReduceOp, Softmax, TopK, TopKOp
from torchkiln_core.layers.resampling import GridSample, Interpolation, Resize, ResizeCoordinates, ResizeRounding, ResizeSelector
from torchkiln_core.layers.shape import Shape, Shuffle
from torchkiln_core.layers.source import Constant, Linspace, RandomNormal, RandomUniform

__all__ = [
    "NMS",
    "Activation",
    "ActivationKind",
    "Attention",
    "BoxFormat",
    "Cast",
    "CausalMask",
    "Collected",
    "Concatenation",
    "Constant",
    "Convolution",
    "Cumulative",
    "CumulativeOp",
    "Deconvolution",
    "Dequantize",
    "Einsum",
    "Elementwise",
    "ElementwiseOp",
    "Gather",
    "GatherMode",
    "GridSample",
    "IfConditional",
    "Interpolation",
    "Iterated",
    "KVCacheUpdate",
    "Linspace",
    "Loop",
    "LoopOutput",
    "MatrixMultiply",
    "MatrixOp",
    "NonZero",
    "Normalization",
    "OneHot",
    "ParametricRelu",
    "Pooling",
    "PoolingKind",
    "Quantize",
    "RandomNormal",
    "RandomUniform",
    "Reduce",
    "ReduceOp",
    "Resize",
    "ResizeCoordinates",
    "ResizeRounding",
    "ResizeSelector",
    "RotaryEmbedding",
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
    "operand_input",
    "recurrence_input",
    "slice_input",
]
