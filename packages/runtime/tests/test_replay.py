"""What TensorRT infers may say more than the record, where it is true."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchkiln_core import DimRange, Network
from torchkiln_core.size import size_of
from torchkiln_runtime.adapter import Replay


def test_a_size_that_a_guard_of_the_program_fixes() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    rows, columns = mode.from_tensor(torch.ones(2, 3)).shape
    least = torch.sym_min(rows, columns)
    net = Network({str(size): DimRange(str(size), 2, 3, 8) for size in (rows, columns)}, mode)
    net.input("x", torch.float32, (rows, columns))
    unused: Any = None
    replay = Replay(unused, net, unused)
    assert least == 2
    assert replay._agree(size_of(least), 2)
    assert not replay._agree(size_of(least), 3)
    assert replay._agree(size_of(least), -1)
