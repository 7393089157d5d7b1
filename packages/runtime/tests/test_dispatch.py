"""Networks for other ranges, the choice between engines by shape, and static engines for hot shapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest
import torch

from torchkiln_core import DimRange, InternalError, Network, PlanError, ShapeOutOfProfile, network_key
from torchkiln_core.layers import Shuffle
from torchkiln_runtime import Candidate, HotShapes, ReferenceEngine, ShapeDispatch, TensorRTBuilder, fixed_at, input_symbols, narrowed


def bounds(network: Network, low: int, opt: int, high: int) -> dict[str, DimRange]:
    [symbol] = input_symbols(network)
    return {symbol: DimRange(symbol, low, opt, high)}


def test_a_network_at_one_size_is_static_and_gives_the_same(dynamic_network):
    static = narrowed(dynamic_network, fixed_at(dynamic_network, [(5, 6)]))
    assert [value.shape for value in static.inputs] == [(5, 6)]
    assert [value.shape for _, value in static.outputs] == [(10, 3), (5, 6)]
    assert all(value.is_static for step in static.steps for value in step.outputs)
    x = torch.randn(5, 6)
    torch.testing.assert_close(ReferenceEngine(static)(x), ReferenceEngine(dynamic_network)(x))
    with pytest.raises(ShapeOutOfProfile, match="expected 5, got 4"):
        ReferenceEngine(static)(torch.randn(4, 6))
    # The network itself is as it was.
    ReferenceEngine(dynamic_network)(torch.randn(16, 6))


def test_a_network_of_a_narrower_range_refuses_the_rest(dynamic_network):
    small = narrowed(dynamic_network, bounds(dynamic_network, 2, 2, 3))
    x = torch.randn(3, 6)
    torch.testing.assert_close(ReferenceEngine(small)(x), ReferenceEngine(dynamic_network)(x))
    with pytest.raises(ShapeOutOfProfile, match=r"\[2, 3\], got 4"):
        ReferenceEngine(small)(torch.randn(4, 6))
    assert network_key(small, {}) != network_key(dynamic_network, {})
    assert network_key(narrowed(dynamic_network, {}), {}) == network_key(dynamic_network, {})


def test_narrowed_networks_build(dynamic_network, ahead):
    for dims in (fixed_at(dynamic_network, [(5, 6)]), bounds(dynamic_network, 2, 2, 3)):
        assert TensorRTBuilder(ahead).build(narrowed(dynamic_network, dims)).data.numel() > 0


def test_a_symbol_is_solved_from_a_derived_dimension(make_dynamic):
    net, n = make_dynamic()
    net.output("y", net.add(Shuffle(), net.input("x", torch.float32, (2 * n + 1, 3))))
    [fixed] = fixed_at(net, [(9, 3)]).values()
    assert (fixed.min, fixed.max) == (4, 4)
    with pytest.raises(InternalError, match="no dimension of an input determines it"):
        fixed_at(net, [(8, 3)])


class Recorder:
    """An engine that counts its calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls += 1
        return inputs


def candidate(network: Network, name: str, low: int, high: int) -> Candidate:
    return Candidate.of(name, narrowed(network, bounds(network, low, low, high)), Recorder(name))


def test_the_tightest_that_fits_runs(dynamic_network):
    dispatch = ShapeDispatch([candidate(dynamic_network, *item) for item in (("wide", 1, 16), ("small", 1, 4), ("exact", 3, 3))], None)
    chosen = {rows: dispatch.engine_for([(rows, 6)]).name for rows in (1, 3, 4, 5, 16)}
    assert chosen == {1: "small", 3: "exact", 4: "small", 5: "wide", 16: "wide"}
    x = torch.randn(3, 6)
    assert dispatch(x)[0] is x
    assert dispatch.engine_for([(3, 6)]).calls == 1


def test_shapes_that_nothing_takes_are_refused_with_every_reason(dynamic_network):
    dispatch = ShapeDispatch([candidate(dynamic_network, "small", 1, 4), candidate(dynamic_network, "large", 8, 16)], None)
    with pytest.raises(ShapeOutOfProfile, match=r"small: .*\[1, 4\], got 5\n.*large: .*\[8, 16\], got 5\n  fix"):
        dispatch(torch.randn(5, 6))
    with pytest.raises(PlanError, match="expected 1 inputs, got 2"):
        dispatch(torch.randn(5, 6), torch.randn(5, 6))
    single = ShapeDispatch([candidate(dynamic_network, "", 1, 4)], None)
    with pytest.raises(ShapeOutOfProfile, match=r"^input 'x', dimension 0: expected a size in \[1, 4\], got 5"):
        single(torch.randn(5, 6))


class Later(Executor):
    """Runs what is submitted when ``run`` is called."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, function, /, *args, **kwargs) -> Future:
        future: Future = Future()

        def job() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except RuntimeError as error:
                future.set_exception(error)

        self.jobs.append(job)
        return future

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()


@pytest.fixture
def executor() -> Later:
    return Later()


@pytest.fixture
def hot_dispatch(dynamic_network, executor) -> Callable[..., ShapeDispatch]:
    def make(build: Callable[[Sequence[Sequence[int]]], Recorder], after: int = 3, limit: int = 2) -> ShapeDispatch:
        whole = Candidate.of("", dynamic_network, Recorder("dynamic"))
        return ShapeDispatch([whole], HotShapes(after, limit, build, executor))

    return make


def static(shapes: Sequence[Sequence[int]]) -> Recorder:
    return Recorder(f"static {shapes[0][0]}")


def call(dispatch: ShapeDispatch, rows: int, times: int = 1) -> None:
    x = torch.randn(rows, 6)
    for _ in range(times):
        dispatch(x)


def running(dispatch: ShapeDispatch, rows: int) -> str:
    return dispatch.engine_for([(rows, 6)]).name


def test_hot_shapes_get_a_static_engine_once(hot_dispatch, executor):
    dispatch = hot_dispatch(static)
    call(dispatch, 5, 2)
    assert executor.jobs == []
    call(dispatch, 5, 4)
    assert len(executor.jobs) == 1
    # Until the build is done, calls run on as before.
    assert running(dispatch, 5) == "dynamic"
    assert [item.state for item in dispatch.specializations] == ["building"]
    assert not dispatch.hot.wait(0.01)
    executor.run()
    assert dispatch.hot.wait(0)
    assert running(dispatch, 5) == "static 5"
    assert running(dispatch, 6) == "dynamic"
    call(dispatch, 5, 5)
    assert executor.jobs == []
    assert dispatch.engine_for([(5, 6)]).calls == 5
    [found] = dispatch.specializations
    assert (found.shapes, found.state) == (((5, 6),), "serving")


def test_a_failing_build_changes_nothing(hot_dispatch, executor, caplog):
    def fail(shapes):
        raise RuntimeError("out of memory")

    dispatch = hot_dispatch(fail)
    call(dispatch, 5, 3)
    executor.run()
    call(dispatch, 5, 9)
    assert running(dispatch, 5) == "dynamic"
    assert executor.jobs == []
    [found] = dispatch.specializations
    assert (found.state, found.reason) == ("failed", "RuntimeError: out of memory")
    assert "calls run on as before" in caplog.text


def test_builds_end_after_failures_in_a_row(hot_dispatch, executor):
    def fail(shapes):
        raise RuntimeError("no")

    dispatch = hot_dispatch(fail)
    for rows in range(2, 8):
        call(dispatch, rows, 3)
        executor.run()
    assert [item.state for item in dispatch.specializations] == ["failed"] * 3


def test_the_one_unused_for_longest_goes_and_needs_twice_the_calls(hot_dispatch, executor):
    dispatch = hot_dispatch(static)
    for rows in (5, 6):
        call(dispatch, rows, 3)
    executor.run()
    call(dispatch, 5)
    call(dispatch, 7, 3)
    executor.run()
    assert [running(dispatch, rows) for rows in (5, 6, 7)] == ["static 5", "dynamic", "static 7"]
    assert [item.state for item in dispatch.specializations] == ["serving", "replaced", "serving"]
    call(dispatch, 6, 5)
    assert executor.jobs == []
    call(dispatch, 6)
    assert len(executor.jobs) == 1


def test_engines_in_captured_graphs_stay(hot_dispatch, executor):
    def held(shapes):
        engine = static(shapes)
        engine.in_captured_graphs = True
        return engine

    dispatch = hot_dispatch(held, limit=1)
    call(dispatch, 5, 3)
    executor.run()
    call(dispatch, 6, 3)
    executor.run()
    assert [running(dispatch, rows) for rows in (5, 6)] == ["static 5", "dynamic"]
    assert [item.state for item in dispatch.specializations] == ["serving", "failed"]


def test_a_listener_hears_of_swaps_and_failures(hot_dispatch, executor, caplog):
    heard = []

    def build(shapes):
        if shapes[0][0] == 6:
            raise RuntimeError("no")
        return static(shapes)

    def listen():
        heard.append([item.state for item in dispatch.specializations])
        raise ValueError("mine")

    dispatch = hot_dispatch(build)
    dispatch.hot.on_change = listen
    for rows in (5, 6):
        call(dispatch, rows, 3)
        executor.run()
    assert heard == [["serving"], ["serving", "failed"]]
    assert "exception calling callback" in caplog.text


def test_many_shapes_do_not_pile_up(hot_dispatch, executor):
    dispatch = hot_dispatch(static)
    call(dispatch, 5, 3)
    executor.run()
    for _ in range(2):
        for rows in range(1, 17):
            call(dispatch, rows)
    assert running(dispatch, 5) == "static 5"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_threads_get_right_results_while_engines_are_swapped(dynamic_network, pool):
    def build(shapes):
        return ReferenceEngine(narrowed(dynamic_network, fixed_at(dynamic_network, shapes)))

    engine = ReferenceEngine(dynamic_network)
    dispatch = ShapeDispatch([Candidate.of("", dynamic_network, engine)], HotShapes(4, 3, build, pool))
    gate = threading.Barrier(4)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        gate.wait()
        for number in range(60):
            x = torch.randn(1 + number % 7, 6, generator=generator)
            torch.testing.assert_close(dispatch(x), engine(x))

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(work, range(4)))
    assert dispatch.hot.wait(60)
    states = [item.state for item in dispatch.specializations]
    assert states.count("serving") == 3
    assert set(states) <= {"serving", "replaced"}
