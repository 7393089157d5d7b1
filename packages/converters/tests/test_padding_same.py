"""Padding by name where the total is odd: the end gets one more."""

from __future__ import annotations

import pytest
import torch

from torchkiln_converters.ops.convolution import conv2d_named
from torchkiln_core import Interpreter, Network


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize(("kernel", "dilation"), [((2, 3), (1, 1)), ((4, 2), (3, 1)), ((3, 4), (2, 1))])
def test_an_odd_padding_is_split_as_eager_splits_it(kernel, dilation):
    x, weight = torch.randn(2, 3, 9, 8), torch.randn(4, 3, *kernel)
    net = Network()
    value = net.input("x", torch.float32, x.shape)
    net.output("y", conv2d_named(net, value, net.constant(weight), None, (1, 1), "same", dilation, 1))
    expected = torch.nn.functional.conv2d(x, weight, padding="same", dilation=dilation)
    torch.testing.assert_close(Interpreter(net)(x)[0], expected)
