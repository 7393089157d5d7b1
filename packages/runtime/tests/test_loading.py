"""Plans for another library, version or machine are refused before anything runs; the operator traces without a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchkiln_core import InternalError, Plan, PlanError, PlanFormatError, PlanTargetMismatch, Target
from torchkiln_runtime import TensorRTBuilder, TensorRTLoader, find_library, gpu_support, plan_meta
from torchkiln_runtime.runtime_cache import RuntimeCacheFile

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="gpu: this machine has one")


@pytest.fixture
def plan(dynamic_network, ahead) -> Plan:
    return TensorRTBuilder(ahead).build(dynamic_network)


def aimed_at(plan: Plan, **changes: Any) -> Plan:
    return dataclasses.replace(plan, target=dataclasses.replace(plan.target, **changes))


def test_another_version_is_refused_with_both_sides(plan):
    here = find_library("tensorrt_rtx")
    with pytest.raises(PlanTargetMismatch, match=r"tensorrt_rtx 9\.9\.9 for sm_89.*in use here") as caught:
        TensorRTLoader().load(aimed_at(plan, version="9.9.9"))
    assert here.version in str(caught.value)
    assert "fix: install tensorrt_rtx 9.9.9" in str(caught.value)


@pytest.mark.skipif(find_library("tensorrt") is not None, reason="tensorrt: it is installed")
def test_another_library_is_refused(plan):
    with pytest.raises(PlanTargetMismatch, match=r"needs tensorrt, but tensorrt_rtx .* is installed"):
        TensorRTLoader().load(aimed_at(plan, library="tensorrt"))


@NO_GPU
def test_without_a_gpu_nothing_loads(plan):
    with pytest.raises(PlanError, match="no NVIDIA GPU"):
        TensorRTLoader().load(plan)
    assert gpu_support(find_library(), None) == "torch sees no NVIDIA GPU on this machine"


def test_without_a_library_no_gpu_serves():
    assert gpu_support(None) == "neither TensorRT-RTX nor TensorRT is installed"


def test_the_operator_infers_from_its_sizes(plan):
    with FakeTensorMode(allow_non_fake_inputs=True):
        halves, rows = torch.ops.torchkiln.run_plan([torch.empty(5, 6)], plan.data, plan_meta(plan), [10, 3, 5, 6])
        assert (halves.shape, halves.dtype) == ((10, 3), torch.float32)
        assert rows.shape == (5, 6)


def test_the_operator_wants_a_size_for_every_dimension(plan):
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(InternalError, match="expected 4 output sizes, got 3"):
        torch.ops.torchkiln.run_plan([torch.empty(5, 6)], plan.data, plan_meta(plan), [10, 3, 5])


def test_the_operator_runs_on_gpus_only(plan):
    with pytest.raises(PlanError, match="NVIDIA GPU, got cpu"):
        torch.ops.torchkiln.run_plan([torch.randn(5, 6)], plan.data, plan_meta(plan), [10, 3, 5, 6])


def test_a_broken_meta_is_refused(plan):
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(PlanFormatError):
        torch.ops.torchkiln.run_plan([torch.empty(5, 6)], plan.data, "{}", [])


def test_a_program_with_the_operator_exports_with_dynamic_sizes(plan):
    meta = plan_meta(plan)

    class Program(torch.nn.Module):
        def forward(self, x: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
            halves, rows = torch.ops.torchkiln.run_plan([x], data, meta, [x.shape[0] * 2, 3, x.shape[0], 6])
            return halves.sum() + rows.sum()

    n = torch.export.Dim("n", min=2, max=16)
    exported = torch.export.export(
        Program(), (torch.empty(5, 6, device="meta"), plan.data), dynamic_shapes={"x": {0: n}, "data": None}, strict=False
    )
    (call,) = [node for node in exported.graph.nodes if "run_plan" in str(node.target)]
    assert [str(value.shape[1]) for value in call.meta["val"]] == ["3", "6"]


class FakeCache:
    """Stands in for TensorRT's cache of kernels."""

    def __init__(self, content: bytes, accepts: bool = True) -> None:
        self.content, self.accepts = content, accepts

    def serialize(self) -> Any:
        return memoryview(self.content)

    def deserialize(self, blob: bytes) -> bool:
        if self.accepts:
            self.content = blob
        return self.accepts


def test_compiled_kernels_are_kept(tmp_path):
    RuntimeCacheFile(tmp_path, "key").write_from(FakeCache(b"kernels"))
    later = FakeCache(b"")
    file = RuntimeCacheFile(tmp_path, "key")
    file.read_into(later)
    assert later.content == b"kernels"
    file.write_from(FakeCache(b"less"))
    file.read_into(later)
    assert later.content == b"kernels"


def test_refused_kernels_are_replaced(tmp_path):
    RuntimeCacheFile(tmp_path, "key").write_from(FakeCache(b"of another GPU"))
    file = RuntimeCacheFile(tmp_path, "key")
    file.read_into(FakeCache(b"", accepts=False))
    file.write_from(FakeCache(b"mine"))
    later = FakeCache(b"")
    RuntimeCacheFile(tmp_path, "key").read_into(later)
    assert later.content == b"mine"


def test_targets_print_what_they_are_for():
    assert str(Target("tensorrt_rtx", "1.6.1", ("sm_89", "sm_120"))) == "tensorrt_rtx 1.6.1 for sm_89, sm_120"
