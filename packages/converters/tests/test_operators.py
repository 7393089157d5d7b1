"""Every row of the tables: the reference engine agrees with eager PyTorch, TensorRT accepts the network, and its engine agrees on a GPU."""

from __future__ import annotations

import pytest
import torch

from torchkiln_core import Interpreter
from torchkiln_testing import OpCase, check_op, check_op_in, eager_truth, trace_call

aten = torch.ops.aten
UNFILLED = (
    OpCase(aten.empty.memory_format, ([2, 3],), {"dtype": torch.int64}),
    OpCase(aten.new_empty.default, (torch.ones(4), [2, 3])),
    OpCase(aten.empty_like.default, (torch.ones(2, 3),)),
)
"""Tensors of no particular values."""
SORTS = (aten.sort.default, aten.sort.stable)


@pytest.mark.filterwarnings("ignore:var")
def test_rows(dtyped_row, converter, builder):
    check_op(dtyped_row, converter, builder)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:var")
def test_rows_on_a_gpu(dtyped_row, converter, engine_on_gpu):
    if dtyped_row.op in SORTS:
        there, here = (dtyped_row.with_tensors(lambda _, tensor, to=device: tensor.to(to)).eager()[0] for device in ("cuda", "cpu"))
        if not torch.equal(there.isnan().cpu(), here.isnan()):
            pytest.skip(f"this release of torch sorts NaN of {here.dtype} first on a GPU and last on a CPU, which is followed here")
    with eager_truth():
        check_op_in(dtyped_row, converter, engine_on_gpu, "cuda")


def test_rows_were_built_by_tensorrt(builder):
    if builder is None:
        pytest.skip("rows were compared with eager only: torchkiln_runtime or a TensorRT library is not installed")


@pytest.mark.parametrize("unfilled", UNFILLED, ids=str)
def test_unfilled_tensors_have_dtype_and_shape(unfilled, converter):
    traced = trace_call(unfilled)
    network = converter.convert(traced.segment, traced.program)
    (got,), (expected,) = Interpreter(network)(*unfilled.tensors()), unfilled.eager()
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)


def test_every_operator_has_a_row(registry, cases):
    missing = registry.targets - {case.op for case in cases} - {case.op for case in UNFILLED}
    assert not missing, f"no row for {', '.join(sorted(map(str, missing)))}"
