"""The operator as TensorRT layers; the entry point ``torchkiln.converters`` names this module."""

from __future__ import annotations

import torch

import squared_relu.operator  # noqa: F401 - registers the operator
from torchkiln_converters import Support, converter
from torchkiln_converters.support import FLOATS
from torchkiln_core import Network, Value
from torchkiln_core.layers import Activation, ActivationKind, Elementwise, ElementwiseOp


@converter(torch.ops.squared_relu.forward.default, Support(dtypes=FLOATS, ranks=range(1, 9)))
def convert_squared_relu(net: Network, x: Value) -> Value:
    """``squared_relu::forward(Tensor x) -> Tensor``."""
    positive = net.add(Activation(ActivationKind.RELU), x)
    return net.add(Elementwise(ElementwiseOp.PROD), positive, positive)
