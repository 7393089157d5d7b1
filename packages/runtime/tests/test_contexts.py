"""What a context says where TensorRT does not run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sympy
import torch

from torchkiln_core import Binding, BuildError, InternalError
from torchkiln_runtime import contexts
from torchkiln_runtime.contexts import Context


class Raw:
    """An execution context that runs or does not."""

    def __init__(self) -> None:
        self.runs = True

    def set_input_shape(self, name, shape) -> bool:
        self.shape = shape
        return True

    def get_tensor_shape(self, name):
        return self.shape

    def set_tensor_address(self, name, address) -> None:
        pass

    def execute_async_v3(self, stream) -> bool:
        return self.runs


@pytest.fixture
def context(monkeypatch):
    monkeypatch.setattr(contexts, "new_event", object)
    size = sympy.Symbol("s")
    plan = SimpleNamespace(inputs=(Binding("x", torch.float32, (size,)),), outputs=(Binding("y", torch.float32, (size,)),))
    library = SimpleNamespace(name="tensorrt_rtx", messages=SimpleNamespace(recent=["no valid execution plans"]))
    return Context(Raw(), plan, library, None)


STREAM = SimpleNamespace(cuda_stream=0)


def test_kernels_that_do_not_compile_at_the_first_run_are_a_build_error(context):
    context._raw.runs = False
    for size in (2, 3):
        context.prepare(((size,),), ((size,),))
        with pytest.raises(BuildError, match="no valid execution plans") as caught:
            context.run([1], [2], STREAM)
        assert "torch_executed_ops" in str(caught.value)


def test_a_run_that_fails_later_is_not(context):
    context.prepare(((2,),), ((2,),))
    context.run([1], [2], STREAM)
    context._raw.runs = False
    with pytest.raises(InternalError, match="did not run"):
        context.run([1], [2], STREAM)
    context.prepare(((3,),), ((3,),))
    with pytest.raises(BuildError):
        context.run([1], [2], STREAM)
