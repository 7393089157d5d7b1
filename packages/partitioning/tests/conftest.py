"""Programs to divide, a stand-in for the converters, and a runner of stitched graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.export.graph_signature import InputKind as ExportKind

from torchkiln_core.call import OpCall
from torchkiln_core.partition import Partition
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_core.rejection import Rejection
from torchkiln_core.spec import DimRange
from torchkiln_partitioning.levels import Dependencies, Kind


@dataclasses.dataclass(frozen=True)
class FakeOracle:
    """Converts everything but the named operators."""

    unsupported: frozenset[str] = frozenset()

    @property
    def targets(self) -> frozenset[Callable[..., Any]]:
        return frozenset()

    def reject(self, call: OpCall) -> Rejection | None:
        name = str(call.target).removeprefix("aten.").partition(".")[0]
        return Rejection.of(call, "no-converter", f"no converter for {name}") if name in self.unsupported else None


def program_of(exported: torch.export.ExportedProgram) -> Program:
    module = exported.graph_module
    inputs: list[ProgramInput] = []
    weights: dict[str, torch.Tensor] = {}
    for spec in exported.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is ExportKind.USER_INPUT:
            inputs.append(ProgramInput(name, InputKind.USER))
            continue
        inputs.append(ProgramInput(name, InputKind.WEIGHT, spec.target))
        weights[name] = exported.state_dict[spec.target] if spec.target in exported.state_dict else exported.constants[spec.target]
    dims = {}
    for symbol, bounds in exported.range_constraints.items():
        if bounds.upper < 10_000:
            dims[str(symbol)] = DimRange(str(symbol), int(bounds.lower), int(bounds.upper), int(bounds.upper))
    return Program(module, tuple(inputs), weights, dims)


class Embedded(torch.nn.Module):
    """What the frontend puts in place of an engine segment: takes its inputs only."""

    def __init__(self, module: torch.nn.Module, weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.module = module
        self.held = tuple(weights)

    def forward(self, *inputs):
        for value in inputs:
            assert isinstance(value, torch.Tensor)
        outputs = self.module(*inputs, *self.held)
        assert isinstance(outputs, tuple)
        for value in outputs:
            assert isinstance(value, torch.Tensor)
        return outputs


def run_stitched(partition: Partition, *user_inputs: Any) -> tuple[Any, ...]:
    weights = partition.program.weights
    module = torch.fx.GraphModule(partition.module, partition.module.graph)
    for segment in partition.segments:
        if segment.kind == "engine":
            setattr(module, segment.name, Embedded(segment.module, [weights[name] for name in segment.weights]))
    with torch.no_grad():
        return module(*user_inputs, *(weights[name] for name in partition.weights))


def run_whole(program: Program, *user_inputs: Any) -> tuple[Any, ...]:
    given = iter(user_inputs)
    arguments = [program.weights[item.name] if item.kind is InputKind.WEIGHT else next(given) for item in program.inputs]
    with torch.no_grad():
        return torch.fx.Interpreter(program.module).run(*arguments)


@pytest.fixture
def oracle() -> Callable[..., FakeOracle]:
    """``oracle("relu", ...)`` converts everything but these."""
    return lambda *unsupported: FakeOracle(frozenset(unsupported))


@pytest.fixture
def capture() -> Callable[..., Program]:
    """``capture(model_or_function, args, dynamic_shapes)`` gives a program."""

    def make(model: Any, args: tuple[Any, ...], dynamic_shapes: Any = None) -> Program:
        if not isinstance(model, torch.nn.Module):
            function = model

            class Wrapped(torch.nn.Module):
                def forward(self, *args):
                    return function(*args)

            model = Wrapped()
            dynamic_shapes = None if dynamic_shapes is None else (dynamic_shapes,)
        with torch.no_grad():
            exported = torch.export.export(model.eval(), args, dynamic_shapes=dynamic_shapes).run_decompositions({})
        return program_of(exported)

    return make


@pytest.fixture
def check() -> Callable[..., None]:
    """``check(partition, *inputs)``: the structure holds and the stitched graph computes what the program computes."""

    def run(partition: Partition, *user_inputs: Any) -> None:
        check_structure(partition)
        torch.manual_seed(0)
        expected = run_whole(partition.program, *user_inputs)
        torch.manual_seed(0)
        actual = run_stitched(partition, *user_inputs)
        assert len(actual) == len(expected)
        for got, want in zip(actual, expected, strict=True):
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
            else:
                assert got == want
                assert type(got) is type(want)

    return run


def check_structure(partition: Partition) -> None:
    kinds = {item.name: item.kind for item in partition.program.inputs}
    partition.module.graph.lint()
    placeholders = [node.name for node in partition.module.graph.find_nodes(op="placeholder")]
    assert placeholders == [*partition.program.user_inputs, *partition.weights]
    called = [node.target for node in partition.module.graph.find_nodes(op="call_module")]
    assert called == [segment.name for segment in partition.segments]
    for number, segment in enumerate(partition.segments):
        segment.module.graph.lint()
        assert segment.name == f"{segment.kind}_{number}"
        assert [node.name for node in segment.module.graph.find_nodes(op="placeholder")] == [*segment.inputs, *segment.weights]
        assert all(kinds[name] is InputKind.WEIGHT for name in segment.weights)
        for node in segment.module.graph.nodes:
            assert node.op in ("output", "get_attr") or "val" in node.meta or not node.users
            if segment.kind == "engine" and node.op == "placeholder":
                assert isinstance(node.meta["val"], torch.Tensor)


@pytest.fixture
def run() -> Callable[..., tuple[Any, ...]]:
    """``run(partition, *inputs)`` runs the stitched graph with stand-ins for engines."""
    return run_stitched


@pytest.fixture
def kinds() -> Callable[[Partition], Mapping[str, int] | Iterable[str]]:
    """The kinds of a partition's segments in call order."""
    return lambda partition: [segment.kind for segment in partition.segments]


@pytest.fixture(scope="session")
def fewest() -> Callable[[Dependencies], int]:
    """``fewest(graph)``: the fewest runs of one kind over all topological orders, by search over sets of done vertices."""
    return fewest_segments


def fewest_segments(graph: Dependencies) -> int:
    count = len(graph.kinds)
    goal = (1 << count) - 1
    best = {(0, None): 0}
    frontier = [(0, None)]
    while frontier:
        following = []
        for done, kind in frontier:
            for vertex in range(count):
                ready = all(done >> other & 1 for other in graph.predecessors[vertex])
                if done >> vertex & 1 or not ready:
                    continue
                own = graph.kinds[vertex]
                new_kind = kind if own is Kind.FREE else own
                state = (done | 1 << vertex, new_kind)
                cost = best[done, kind] + (own is not Kind.FREE and own is not kind)
                if cost < best.get(state, count + 1):
                    best[state] = cost
                    following.append(state)
        frontier = following
    return min(cost for (done, _), cost in best.items() if done == goal)
