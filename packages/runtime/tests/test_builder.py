"""Plans are built without a GPU; refusals say why and where."""

from __future__ import annotations

import dataclasses
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from torchkiln_core import BuildError, BuildOptions, InternalError, Network, Value, layers
from torchkiln_core.layers import Activation, ActivationKind, Elementwise, ElementwiseOp, Shuffle, Softmax, Unary, UnaryOp
from torchkiln_runtime import CachedBuilder, MemoryPlanCache, TensorRTBuilder, find_library
from torchkiln_runtime.adapter import WRITERS
from torchkiln_runtime.timing import configure_timing


def test_a_plan_says_what_it_holds(static_network, ahead):
    plan = TensorRTBuilder(dataclasses.replace(ahead, targets=("sm_89", "sm_120"))).build(static_network)
    assert plan.data.dtype is torch.uint8
    assert plan.data.numel() > 1000
    assert [(b.name, b.dtype, b.shape) for b in plan.inputs] == [("x", torch.float32, (2, 3))]
    assert [(b.name, b.shape) for b in plan.outputs] == [("y", (2, 4))]
    assert plan.target.gpus == ("sm_89", "sm_120")
    assert plan.target.library == "tensorrt_rtx"
    assert plan.build_ms > 0
    assert plan.allow_tf32 is False
    assert plan.symbols == ()


def test_dynamic_sizes_become_expressions(dynamic_network, ahead):
    plan = TensorRTBuilder(ahead).build(dynamic_network)
    (name, index, dim) = plan.symbols[0]
    assert (index, dim) == (0, 0)
    assert [str(size) for size in plan.outputs[0].shape] == [f"2*{name}", "3"]


def test_every_layer_has_a_writer():
    kinds = {getattr(layers, name) for name in layers.__all__}
    assert set(WRITERS) == {kind for kind in kinds if isinstance(kind, type) and hasattr(kind, "kind") and kind.__module__ != "enum"}


@pytest.mark.parametrize(
    ("targets", "pattern"),
    [
        (("sm-89",), "did you mean 'sm_89'"),
        (("sm89",), "did you mean 'sm_89'"),
        (("h200",), "sm_89, sm_120"),
        (("SM_89", "cpu"), "'cpu'"),
        (("sm_88",), r'current, the GPU at hand\n  fix: name one of these .* where a GPU of sm_88 is, with targets=\["current"\]'),
    ],
)
def test_unknown_targets_are_refused(static_network, ahead, targets, pattern):
    with pytest.raises(BuildError, match=pattern):
        TensorRTBuilder(dataclasses.replace(ahead, targets=targets)).build(static_network)


@pytest.mark.skipif(torch.cuda.is_available(), reason="gpu: this machine has one, so the current GPU is a target")
@pytest.mark.parametrize("targets", [(), ("current",), ("sm_89", "current")])
def test_without_a_gpu_targets_must_be_named(static_network, ahead, targets):
    with pytest.raises(BuildError, match=r'targets=\("sm_75"'):
        TensorRTBuilder(dataclasses.replace(ahead, targets=targets)).build(static_network)


@pytest.mark.parametrize(("dtype", "name"), [(torch.bool, "Bool"), (torch.int8, "i8")], ids=["when it is added", "when it is built"])
def test_a_refused_layer_names_itself_the_line_and_the_reason(ahead, dtype, name):
    net = Network()
    x = net.input("x", dtype, (2, 3))
    with net.scope("twice", "model.py:7 in forward: y = -x"):
        step = net.add(Shuffle(), x)
    net.output("y", step)
    net.steps[-1] = dataclasses.replace(net.steps[-1], layer=Softmax(1))
    with pytest.raises(BuildError, match=r"model\.py:7") as caught:
        TensorRTBuilder(ahead).build(net)
    assert name in str(caught.value)
    assert caught.value.node == "twice/Shuffle"


def test_a_failed_build_carries_what_tensorrt_logged(ahead):
    net = Network()
    x = net.input("x", torch.float32, (2, 3))
    wide = net.constant(torch.ones(2, 3, dtype=torch.int8))
    net.output("x", x)
    net.output("wide", wide)
    with pytest.raises(BuildError, match="Quantized constant"):
        TensorRTBuilder(ahead).build(net)


def test_a_dtype_that_tensorrt_lacks_is_refused(ahead):
    net = Network()
    x = net.input("x", torch.float64, (2,))
    net.output("y", net.add(Shuffle(), x))
    with pytest.raises(BuildError, match="float64"):
        TensorRTBuilder(ahead).build(net)


@pytest.mark.parametrize("shape", [(2, 4), (6,)])
def test_another_inference_than_ours_is_our_error(ahead, shape):
    net = Network()
    x = net.input("x", torch.float32, (2, 3))
    with net.scope("neg", "model.py:9"):
        y = net.add(Unary(UnaryOp.NEG), x)
    y.shape = shape
    net.output("y", y)
    with pytest.raises(InternalError, match=r"TensorRT infers FLOAT\[2, 3\]") as caught:
        TensorRTBuilder(ahead).build(net)
    assert caught.value.layer == "neg/Unary"
    assert caught.value.where == "model.py:9"


def test_another_dtype_than_ours_is_our_error(ahead):
    net = Network()
    y = net.add(Unary(UnaryOp.NEG), net.input("x", torch.float32, (2,)))
    y.dtype = torch.float16
    net.output("y", y)
    with pytest.raises(InternalError, match="TensorRT infers FLOAT"):
        TensorRTBuilder(ahead).build(net)


def test_inputs_constants_and_repeated_values_can_be_outputs(ahead):
    net = Network()
    x = net.input("x", torch.bfloat16, (2,))
    held = net.constant(torch.tensor(True))
    y = net.add(Activation(ActivationKind.RELU), x)
    for name, value in (("x", x), ("held", held), ("held", held), ("y", y), ("again", y)):
        net.output(name, value)
    plan = TensorRTBuilder(ahead).build(net)
    assert [binding.name for binding in plan.outputs] == ["x", "held", "held", "y", "again"]


def test_a_network_without_inputs_builds(ahead):
    net = Network()
    net.output("y", net.add(Unary(UnaryOp.EXP), net.constant(torch.ones(3))))
    assert TensorRTBuilder(ahead).build(net).inputs == ()


def test_a_network_without_outputs_is_our_error(ahead):
    net = Network()
    net.input("x", torch.float32, (1,))
    with pytest.raises(InternalError, match="no outputs"):
        TensorRTBuilder(ahead).build(net)


@pytest.mark.parametrize(
    "changes",
    [{"optimization_level": 2}, {"workspace_bytes": 1 << 30}, {"targets": ("sm_120",)}, {"deterministic": True}, {"benchmark": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_options_are_taken_and_enter_the_key(static_network, ahead, changes):
    before, after = TensorRTBuilder(ahead), TensorRTBuilder(dataclasses.replace(ahead, **changes))
    plan = after.build(static_network)
    assert plan.key == after.key(static_network)
    assert plan.key != before.key(static_network)


def test_switches_that_are_off_have_one_key(static_network, ahead):
    off = TensorRTBuilder(dataclasses.replace(ahead, deterministic=False, benchmark=False))
    assert off.key(static_network) == TensorRTBuilder(ahead).key(static_network)


def test_tensorrt_rtx_builds_the_same_plan_every_time_and_at_every_level(static_network, ahead):
    # What docs/backends.md promises of it: no kernel is chosen by timing, and the level changes nothing.
    plans = [TensorRTBuilder(dataclasses.replace(ahead, optimization_level=level)).build(static_network) for level in (None, None, 0, 5)]
    assert all(torch.equal(plan.data, plans[0].data) for plan in plans)


class _Library:
    """TensorRT for data centres as far as kernels are chosen."""

    name = "tensorrt"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (BuildOptions(), {}),
        (BuildOptions(optimization_level=4), {"builder_optimization_level": 4}),
        (BuildOptions(deterministic=True), {"builder_optimization_level": 0}),
        (BuildOptions(deterministic=True, optimization_level=0), {"builder_optimization_level": 0}),
        (BuildOptions(benchmark=True), {"avg_timing_iterations": 8}),
    ],
)
def test_how_kernels_are_chosen_where_they_are_timed(options, expected):
    config = SimpleNamespace()
    configure_timing(config, options, _Library())
    assert vars(config) == expected


def test_a_level_that_times_kernels_gives_way(caplog):
    config = SimpleNamespace()
    configure_timing(config, BuildOptions(deterministic=True, optimization_level=3), _Library())
    assert vars(config) == {"builder_optimization_level": 0}
    assert "optimization_level=3: 0 is used" in caplog.text


def test_too_little_workspace_is_said(static_network, ahead):
    with pytest.raises(BuildError, match="workspace"):
        TensorRTBuilder(dataclasses.replace(ahead, workspace_bytes=1 << 20)).build(static_network)


def test_weights_enter_the_key_and_names_do_not(ahead):
    def network(name: str, scale: float) -> Network:
        net = Network()
        x = net.input(name, torch.float32, (2,))
        net.output(f"{name}_out", net.add(Elementwise(ElementwiseOp.PROD), x, net.constant(torch.full((2,), scale))))
        return net

    builder = TensorRTBuilder(ahead)
    assert builder.key(network("a", 1.0)) == builder.key(network("b", 1.0))
    assert builder.key(network("a", 1.0)) != builder.key(network("a", 2.0))


def test_activations_of_a_number_build_side_by_side(ahead):
    net = Network()
    x = net.input("x", torch.float32, ())
    for kind in (ActivationKind.GELU_ERF, ActivationKind.RELU):
        net.output(kind.value, net.add(Activation(kind), x))
    assert TensorRTBuilder(ahead).build(net).data.numel() > 0


def test_weights_need_not_be_contiguous(ahead):
    net = Network()
    x = net.input("x", torch.float32, (4, 3))
    net.output("y", net.add(Elementwise(ElementwiseOp.SUM), x, net.constant(torch.randn(3, 4).t())))
    net.output("z", net.add(Elementwise(ElementwiseOp.SUM), x, net.constant(torch.randn(1, 1).expand(4, 3))))
    assert TensorRTBuilder(ahead).build(net).data.numel() > 0


def test_threads_build_at_once_and_keep_their_errors_apart(ahead):
    def network(axis_dtype: torch.dtype) -> Network:
        net = Network()
        y: Value = net.add(Shuffle(), net.input("x", torch.float32 if axis_dtype is torch.float32 else torch.int8, (2, 3)))
        net.output("y", y)
        net.steps[-1] = dataclasses.replace(net.steps[-1], layer=Softmax(1))
        return net

    builder = TensorRTBuilder(ahead)
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(builder.build, network(dtype)) for dtype in (torch.float32, torch.int8) * 4]
    for index, result in enumerate(results):
        if index % 2:
            assert isinstance(result.exception(), BuildError)
        else:
            assert result.result().data.numel() > 0


def test_a_cached_builder_builds_once_and_names_plans_after_the_network(ahead):
    def network(name: str) -> Network:
        net = Network()
        net.output(f"{name}_out", net.add(Unary(UnaryOp.EXP), net.input(name, torch.float32, (2,))))
        return net

    cache = MemoryPlanCache()
    builder = CachedBuilder(TensorRTBuilder(ahead), cache)
    first, second = builder.build(network("a")), builder.build(network("b"))
    assert len(cache) == 1
    assert second.data is first.data
    assert [binding.name for binding in (*second.inputs, *second.outputs)] == ["b", "b_out"]


def test_errors_do_not_flood_the_log(static_network, ahead, caplog):
    with caplog.at_level(logging.WARNING, "torchkiln"):
        TensorRTBuilder(ahead).build(static_network)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_unknown_libraries_are_refused():
    with pytest.raises(BuildError, match="tensorrt_rtx, tensorrt"):
        find_library("onnx")


def test_the_default_options_are_those_of_build_options():
    assert TensorRTBuilder()._options == BuildOptions()
