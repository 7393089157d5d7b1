"""Networks to build and run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torchkiln_core import BuildOptions, DimRange, Network
from torchkiln_core.layers import Activation, ActivationKind, MatrixMultiply, Shuffle, Softmax
from torchkiln_runtime import find_library

NamedTargets = BuildOptions(targets=("sm_89",))


@pytest.fixture
def ahead() -> BuildOptions:
    """Options that build without a GPU; skips where no library can."""
    library = find_library("tensorrt_rtx")
    if library is None:
        pytest.skip("tensorrt_rtx: TensorRT-RTX, which builds without a GPU, is not installed")
    return NamedTargets


@pytest.fixture
def static_network() -> Network:
    """``[2, 3] -> [2, 4]``: gelu(x @ w)."""
    net = Network()
    x = net.input("x", torch.float32, (2, 3))
    weight = net.constant(torch.arange(12.0).reshape(3, 4) / 10 - 0.5, "linear.weight")
    with net.scope("linear", "model.py:3"):
        net.output("y", net.add(Activation(ActivationKind.GELU_ERF), net.add(MatrixMultiply(), x, weight)))
    return net


@pytest.fixture
def make_dynamic() -> Callable[..., tuple[Network, torch.SymInt]]:
    """Makes an empty network with one symbol and its range."""

    def make(low: int = 1, opt: int = 4, high: int = 16) -> tuple[Network, torch.SymInt]:
        mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))
        fake = mode.from_tensor(torch.empty(5), symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC]))
        size = fake.shape[0]
        return Network({str(size): DimRange(str(size), low, opt, high)}, mode), size

    return make


@pytest.fixture
def dynamic_network(make_dynamic: Callable[..., tuple[Network, torch.SymInt]]) -> Network:
    """``[n, 6] -> [2 * n, 3]`` and ``[n, 6]``: a softmax over the halves of rows, and over rows."""
    net, n = make_dynamic()
    x = net.input("x", torch.float32, (n, 6))
    halves = net.add(Shuffle(), x, net.size_tensor((x.shape[0] * 2, 3)))
    net.output("halves", net.add(Softmax(1), halves))
    net.output("rows", net.add(Softmax(1), x))
    return net
