"""Engines on a GPU: results, shapes, streams, graphs, threads and refusals."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch

from torchkiln_core import BuildOptions, Network, PlanError, PlanTargetMismatch, ShapeOutOfProfile
from torchkiln_core.layers import Elementwise, ElementwiseOp, MatrixMultiply, Shuffle, Unary, UnaryOp
from torchkiln_runtime import ContextSettings, ReferenceEngine, TensorRTBuilder, TensorRTLoader, find_library, gpu_support, plan_meta

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module", autouse=True)
def supported():
    reason = gpu_support(find_library(), CUDA)
    if reason is not None:
        pytest.skip(f"engine: {reason}")


@pytest.fixture
def build():
    builder, loader = TensorRTBuilder(BuildOptions()), TensorRTLoader(CUDA)
    return lambda network: loader.load(builder.build(network))


@pytest.fixture(params=["lazy", "eager"])
def engine(dynamic_network, request):
    settings = ContextSettings(specialization=request.param)
    return TensorRTLoader(CUDA, settings=settings).load(TensorRTBuilder(BuildOptions()).build(dynamic_network))


def graphs_of(lane):
    """How many graphs a stream has at each set of shapes."""
    return [len(replays._graphs) for replays in lane.replays._of.values()]


def assert_right(engine, x: torch.Tensor) -> None:
    halves, rows = engine(x)
    torch.testing.assert_close(halves, x.reshape(-1, 3).softmax(1))
    torch.testing.assert_close(rows, x.softmax(1))


def test_results_are_those_of_the_reference(static_network, build):
    engine = build(static_network)
    x = torch.randn(2, 3, device=CUDA)
    for _ in range(4):
        torch.testing.assert_close(engine(x), ReferenceEngine(static_network)(x))


@pytest.fixture
def static_engine(static_network, build):
    return build(static_network), ReferenceEngine(static_network)


def test_replays_see_new_values_and_addresses(static_engine):
    engine, reference = static_engine
    kept = [torch.randn(2, 3, device=CUDA) for _ in range(12)]
    for _ in range(4):
        for x in kept:
            torch.testing.assert_close(engine(x), reference(x))
    [lane] = engine._lanes.values()
    [graphs] = graphs_of(lane)
    assert 0 < graphs <= 8
    x = kept[0]
    for _ in range(4):
        x.copy_(torch.randn(2, 3, device=CUDA))
        torch.testing.assert_close(engine(x), reference(x))


def test_outputs_of_earlier_replays_stay(static_engine):
    engine, reference = static_engine
    x = torch.randn(2, 3, device=CUDA)
    results, expected = [], []
    for _ in range(12):
        x.copy_(torch.randn(2, 3, device=CUDA))
        expected.append(reference(x))
        results.append(engine(x))
    torch.testing.assert_close(results, expected)


def test_a_replay_needs_no_tensor_of_the_capture(static_engine):
    engine, reference = static_engine
    for _ in range(6):
        x = torch.randn(2, 3, device=CUDA)
        torch.testing.assert_close(engine(x), reference(x))
        del x
        torch.full((2, 3), torch.nan, device=CUDA)


@pytest.mark.parametrize("side", [False, True])
def test_replays_are_ordered_with_the_callers_stream(static_engine, side):
    engine, reference = static_engine
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    big = torch.randn(2048, 2048, device=CUDA)
    x = torch.zeros(2, 3, device=CUDA)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for value in range(8):
            for _ in range(8):
                big = torch.tanh(big @ big)
            x.copy_(big[:2, :3] * 0 + value)
            result = engine(x)
            torch.testing.assert_close(result, reference(torch.full((2, 3), float(value), device=CUDA)))


def test_streams_replay_side_by_side(static_engine):
    engine, reference = static_engine
    streams = [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.randn(2, 3, device=CUDA) for _ in streams]
    expected = [reference(x) for x in inputs]
    torch.cuda.synchronize()
    for _ in range(6):
        results = []
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                results.append(engine(x))
        torch.cuda.synchronize()
        torch.testing.assert_close(results, expected)


def test_replays_and_a_capture_of_the_callers(static_engine):
    engine, reference = static_engine
    x = torch.randn(2, 3, device=CUDA)
    for _ in range(4):
        engine(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = engine(x)
    for _ in range(3):
        x.copy_(torch.randn(2, 3, device=CUDA))
        graph.replay()
        torch.testing.assert_close(captured, reference(x))
        torch.testing.assert_close(engine(x), reference(x))


@pytest.mark.parametrize("specialization", ["eager", "none"])
def test_shapes_replay_graphs_of_their_own(dynamic_network, specialization):
    plan = TensorRTBuilder(BuildOptions()).build(dynamic_network)
    engine = TensorRTLoader(CUDA, settings=ContextSettings(specialization=specialization)).load(plan)
    memory = torch.randn(16 * 6, device=CUDA)
    for _ in range(6):
        for n in (4, 1, 16, 4):
            memory.copy_(torch.randn_like(memory))
            # Other shapes at the same address.
            assert_right(engine, memory[: n * 6].view(n, 6))
    [lane] = engine._lanes.values()
    assert len(graphs_of(lane)) == 3
    assert all(graphs_of(lane))


def test_shapes_that_come_often_take_the_room_of_others(dynamic_network):
    plan = TensorRTBuilder(BuildOptions()).build(dynamic_network)
    engine = TensorRTLoader(CUDA, settings=ContextSettings(specialization="eager")).load(plan)
    kept = [torch.randn(n, 6, device=CUDA) for n in range(1, 8)]
    for x in kept:
        for _ in range(40):
            assert_right(engine, x)
    [lane] = engine._lanes.values()
    assert [shapes for [shapes] in lane.replays._of] == [(n, 6) for n in (4, 5, 6, 7)]
    assert all(graphs_of(lane))
    for x in kept:
        assert_right(engine, x)


def test_kernels_that_are_replaced_meanwhile_are_not_captured(dynamic_network):
    plan = TensorRTBuilder(BuildOptions()).build(dynamic_network)
    engine = TensorRTLoader(CUDA, settings=ContextSettings(specialization="lazy")).load(plan)
    x = torch.randn(4, 6, device=CUDA)
    for _ in range(8):
        assert_right(engine, x)
    [lane] = engine._lanes.values()
    assert not graphs_of(lane)


@pytest.mark.parametrize("dynamic", [False, True])
def test_without_graphs_kernels_are_launched_one_by_one(static_network, dynamic_network, dynamic):
    network = dynamic_network if dynamic else static_network
    engine = TensorRTLoader(CUDA, settings=ContextSettings(cuda_graphs="off")).load(TensorRTBuilder(BuildOptions()).build(network))
    reference = ReferenceEngine(network)
    for rows in (4, 4, 9, 4) if dynamic else (2, 2, 2):
        x = torch.randn(rows, 6 if dynamic else 3, device=CUDA)
        torch.testing.assert_close(engine(x), reference(x))
    [lane] = engine._lanes.values()
    assert lane.graphed is None
    assert not any(graphs_of(lane))


def test_attributes_describe_the_engine(engine):
    assert engine.kind == "tensorrt"
    assert [binding.name for binding in engine.outputs] == ["halves", "rows"]


def test_plans_for_named_targets_load_where_the_library_accepts_them(static_network, ahead):
    x = torch.randn(2, 3, device=CUDA)
    plan = TensorRTBuilder(dataclasses.replace(ahead, targets=("sm_80", "sm_89", "sm_120"))).build(static_network)
    torch.testing.assert_close(TensorRTLoader(CUDA).load(plan)(x), ReferenceEngine(static_network)(x))


@pytest.mark.parametrize("order", [(4, 4, 4, 1, 16, 1, 1, 4), (1, 2, 3, 5, 7, 9, 11, 2, 2, 3, 1, 1, 16)])
def test_shapes_may_change_between_calls(engine, order):
    for n in order:
        assert_right(engine, torch.randn(n, 6, device=CUDA))


def test_new_values_and_addresses_are_seen_every_time(engine):
    kept = [torch.randn(4, 6, device=CUDA) for _ in range(8)]
    for _ in range(3):
        for x in kept:
            assert_right(engine, x)
    for _ in range(3):
        kept[0].copy_(torch.randn(4, 6, device=CUDA))
        assert_right(engine, kept[0])


def test_outputs_of_earlier_calls_stay(engine):
    inputs = [torch.randn(4, 6, device=CUDA) for _ in range(6)]
    outputs = [engine(x)[1] for x in inputs]
    for x, rows in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(rows, x.softmax(1))


def test_views_and_unaligned_inputs_are_taken(engine):
    big = torch.randn(40, 12, device=CUDA)
    for x in (big[3:7, ::2], big.t()[:6, :5].t(), big.reshape(-1)[1:25].reshape(4, 6), big[:1, :6].expand(4, 6)):
        for _ in range(3):
            assert_right(engine, x)


def test_inputs_that_require_grad_are_taken(engine):
    x = torch.randn(4, 6, device=CUDA, requires_grad=True)
    halves, _ = engine(x)
    assert not halves.requires_grad
    torch.testing.assert_close(halves, x.detach().reshape(-1, 3).softmax(1))


def test_bad_inputs_are_refused(engine):
    with pytest.raises(ShapeOutOfProfile, match=r"\[1, 16\], got 17"):
        engine(torch.randn(17, 6, device=CUDA))
    with pytest.raises(ShapeOutOfProfile, match="expected 6, got 5"):
        engine(torch.randn(4, 5, device=CUDA))
    with pytest.raises(PlanError, match="float16"):
        engine(torch.randn(4, 6, device=CUDA).half())
    with pytest.raises(PlanError, match="expected it on cuda:0, got cpu"):
        engine(torch.randn(4, 6))
    with pytest.raises(PlanError, match="expected 1 inputs"):
        engine()
    assert_right(engine, torch.randn(4, 6, device=CUDA))


def test_empty_tensors(build, make_dynamic):
    net, n = make_dynamic(0, 4, 16)
    x, y = net.input("x", torch.float32, (n, 3)), net.input("y", torch.float32, (3,))
    net.output("product", net.add(Unary(UnaryOp.NEG), x))
    net.output("other", net.add(Unary(UnaryOp.NEG), y))
    engine = build(net)
    given = torch.randn(3, device=CUDA)
    for size in (0, 2, 0, 0, 4):
        data = torch.randn(size, 3, device=CUDA)
        for _ in range(2):
            product, other = engine(data, given)
            assert torch.equal(product, -data)
            assert torch.equal(other, -given)


def test_all_outputs_empty(build, make_dynamic):
    net, n = make_dynamic(0, 4, 16)
    net.output("y", net.add(Unary(UnaryOp.NEG), net.input("x", torch.float32, (n, 3))))
    assert build(net)(torch.empty(0, 3, device=CUDA))[0].shape == (0, 3)


def test_inputs_and_repeated_values_as_outputs(build):
    net = Network()
    x = net.input("x", torch.bfloat16, (2, 3))
    held = net.constant(torch.tensor([True, False]))
    y = net.add(Shuffle((1, 0)), x)
    for value in (x, held, held, y, y):
        net.output("out", value)
    data = torch.randn(2, 3, device=CUDA).bfloat16()
    for _ in range(3):
        outputs = build(net)(data)
        assert [tensor.tolist() for tensor in outputs] == [
            data.tolist(),
            [True, False],
            [True, False],
            data.t().tolist(),
            data.t().tolist(),
        ]


def slow_network() -> Network:
    net = Network()
    x = value = net.input("x", torch.float32, (1024, 1024))
    weight = net.constant(torch.eye(1024) * 0.5)
    for _ in range(8):
        value = net.add(MatrixMultiply(), value, weight)
    net.output("y", net.add(Elementwise(ElementwiseOp.SUM), value, x))
    return net


@pytest.mark.parametrize("own_stream", [False, True])
def test_runs_are_ordered_with_the_work_around_them(build, own_stream):
    engine = build(slow_network())
    with torch.cuda.stream(torch.cuda.Stream() if own_stream else torch.cuda.default_stream()):
        for step in range(20):
            x = torch.ones(1024, 1024, device=CUDA)
            for _ in range(10):
                x = x @ torch.eye(1024, device=CUDA)
            x = x * step
            (y,) = engine(x)
            # Reuses the memory of the input while the engine may still run.
            del x
            torch.full((1024, 1024), float("nan"), device=CUDA)
            assert (y * 1).mean().item() == pytest.approx(step * (1 + 0.5**8), rel=1e-4)


def test_threads_on_streams_of_their_own(engine):
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator(CUDA).manual_seed(seed)
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(40):
                    n = 1 + seed if seed < 3 else 5
                    assert_right(engine, torch.randn(n, 6, device=CUDA, generator=generator))
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_cuda_graphs_capture_and_replay(engine):
    static = {n: torch.randn(n, 6, device=CUDA) for n in (2, 5)}
    for x in static.values():
        engine(x)
    graphs = {}
    for n, x in static.items():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            first = engine(x)[1]
            second = engine(first)[1]
        graphs[n] = (graph, first, second)
    for turn in range(6):
        for n, (graph, first, second) in graphs.items():
            static[n].copy_(torch.randn(n, 6, device=CUDA))
            graph.replay()
            torch.testing.assert_close(first, static[n].softmax(1))
            torch.testing.assert_close(second, first.softmax(1))
        assert_right(engine, torch.randn(1 + turn, 6, device=CUDA))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_capture_of_shapes_that_have_not_run_is_refused(engine):
    x = torch.randn(7, 6, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(PlanError, match="outside of the capture"), torch.cuda.graph(graph):
        engine(x)
    torch.cuda.synchronize()
    assert_right(engine, x)


def test_another_gpu_content_or_version_is_refused(static_network):
    plan = TensorRTBuilder(BuildOptions()).build(static_network)
    broken = plan.data.clone()
    broken[100:400] = 0
    with pytest.raises(PlanTargetMismatch, match="refused by tensorrt"):
        TensorRTLoader(CUDA).load(dataclasses.replace(plan, data=broken))
    with pytest.raises(PlanTargetMismatch, match="in use here"):
        TensorRTLoader(CUDA).load(dataclasses.replace(plan, target=dataclasses.replace(plan.target, version="0.1")))


def test_compiled_kernels_are_kept_between_engines(dynamic_network, tmp_path):
    plan = TensorRTBuilder(BuildOptions()).build(dynamic_network)
    for _ in range(2):
        engine = TensorRTLoader(CUDA, runtime_cache=tmp_path).load(plan)
        assert_right(engine, torch.randn(4, 6, device=CUDA))
    if find_library().name == "tensorrt_rtx":
        assert [path.suffix for path in tmp_path.iterdir()] == [".kernels"]


def test_the_operator_runs_traces_and_exports(dynamic_network):
    plan = TensorRTBuilder(BuildOptions()).build(dynamic_network)
    meta, data = plan_meta(plan), plan.data

    def program(x: torch.Tensor) -> torch.Tensor:
        halves, rows = torch.ops.torchkiln.run_plan([x], data, meta, [x.shape[0] * 2, 3, x.shape[0], 6])
        return halves.reshape(-1, 6) + rows

    def expected(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 3).softmax(1).reshape(-1, 6) + x.softmax(1)

    compiled = torch.compile(program, backend="aot_eager", dynamic=True, fullgraph=True)
    for n in (4, 4, 9):
        x = torch.randn(n, 6, device=CUDA)
        torch.testing.assert_close(program(x), expected(x))
        torch.testing.assert_close(compiled(x), expected(x))
