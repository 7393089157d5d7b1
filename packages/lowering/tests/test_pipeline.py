"""Pipelines, the registry and the runner."""

from __future__ import annotations

import concurrent.futures
import operator
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.fx
from lowering_programs import Oracle, aten, run, targets, whole

from torchkiln_core.errors import LoweringError
from torchkiln_core.options import LoweringOptions
from torchkiln_lowering import (
    AtenLowering,
    Pass,
    Pipeline,
    apply_lowering_passes,
    aten_lowering_pass,
    default_pipeline,
    dump_lowering_passes,
    remove_lowering_pass,
    standard_pipeline,
)


@pytest.fixture
def restored() -> Iterator[None]:
    """Takes out of the default what a test put in."""
    before = [item.name for item in default_pipeline().passes]
    yield
    for item in default_pipeline().passes:
        if item.name not in before:
            remove_lowering_pass(item.name)


def sub_to_mul(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """Multiplies instead."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.sub.Tensor):
        node.target = aten.mul.Tensor
    return gm


def program() -> Any:
    return whole(lambda x, y: (x - y) + 1, (torch.randn(3), torch.randn(3)))


@pytest.mark.usefixtures("restored")
def test_registered_pass_runs_in_later_compilations_only() -> None:
    earlier = AtenLowering()
    aten_lowering_pass(sub_to_mul)
    assert aten.mul.Tensor in targets(AtenLowering().lower(program(), Oracle()))
    assert aten.mul.Tensor not in targets(earlier.lower(program(), Oracle()))
    last = dump_lowering_passes().splitlines()[-1]
    assert last.startswith(f"{len(standard_pipeline().passes)}: sub_to_mul: Multiplies instead. [")
    assert f"{__file__}:{sub_to_mul.__code__.co_firstlineno})]" in last
    remove_lowering_pass(index=len(standard_pipeline().passes))
    assert "sub_to_mul" not in dump_lowering_passes()


@pytest.mark.usefixtures("restored")
def test_index() -> None:
    seen: list[str] = []

    @aten_lowering_pass(index=0)
    def first(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> torch.fx.GraphModule:
        seen.append(f"first of {len(sample_inputs)}")
        return gm

    @aten_lowering_pass
    def last(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> torch.fx.GraphModule:
        seen.append("last")
        return gm

    AtenLowering().lower(program(), Oracle())
    assert seen == ["first of 2", "last"]
    assert dump_lowering_passes().startswith("0: first [")
    with pytest.raises(ValueError, match="already has"):
        aten_lowering_pass(first)
    with pytest.raises(IndexError, match="at most"):
        aten_lowering_pass(index=99)(sub_to_mul)


def test_unknown_passes_are_refused() -> None:
    with pytest.raises(IndexError):
        remove_lowering_pass(index=99)
    with pytest.raises(KeyError, match="no lowering pass 'nothing'"):
        remove_lowering_pass("nothing")
    with pytest.raises(TypeError):
        remove_lowering_pass()
    with pytest.raises(ValueError, match="expected remove_dropout before"):
        standard_pipeline().without("remove_dropout")


def test_only_functions_are_registered() -> None:
    before = dump_lowering_passes()
    with pytest.raises(TypeError, match=r"expected a function, got 0; write @aten_lowering_pass\(index=\.\.\.\)"):
        aten_lowering_pass(0)  # type: ignore[call-overload]
    assert dump_lowering_passes() == before


def test_apply_without_metadata() -> None:
    module = torch.fx.GraphModule({}, graph := torch.fx.Graph())
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_function(aten.sub.Tensor, (x, y)),))
    module.recompile()
    result = apply_lowering_passes(module, (torch.ones(2), torch.ones(2)), Pipeline((Pass.from_function(sub_to_mul),)))
    assert result(torch.full((2,), 3.0), torch.full((2,), 4.0))[0].tolist() == [12.0, 12.0]
    assert module(torch.ones(2), torch.ones(2))[0].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="expected 2"):
        apply_lowering_passes(module, (torch.ones(2),))


def test_new_calls_get_metadata_and_are_decomposed() -> None:
    def to_softplus(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> torch.fx.GraphModule:
        for node in gm.graph.find_nodes(op="call_function", target=aten.sub.Tensor):
            with gm.graph.inserting_after(node):
                new = gm.graph.call_function(aten.softplus.default, (node,))
            node.replace_all_uses_with(new)
            new.args = (node,)
        return gm

    lowered = AtenLowering(pipeline=Pipeline((Pass.from_function(to_softplus),))).lower(program(), Oracle())
    assert aten.softplus.default not in targets(lowered)
    assert all("val" in node.meta for node in lowered.module.graph.nodes if node.op == "call_function")
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(run(lowered, x, y)[0], torch.nn.functional.softplus(x - y) + 1)


def test_a_pass_may_return_another_module() -> None:
    def anew(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        x, y = (graph.placeholder(node.name) for node in gm.graph.find_nodes(op="placeholder"))
        graph.output((graph.call_function(aten.mul.Tensor, (x, y)),))
        for new, old in zip(graph.find_nodes(op="placeholder"), gm.graph.find_nodes(op="placeholder"), strict=True):
            new.meta = dict(old.meta)
        return torch.fx.GraphModule({}, graph)

    lowered = AtenLowering(pipeline=Pipeline((Pass.from_function(anew),))).lower(program(), Oracle())
    assert targets(lowered) == [aten.mul.Tensor]


def _failing(kind: str) -> Any:
    def change(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> Any:
        output = gm.graph.output_node()
        if kind == "raises":
            raise RuntimeError("no luck")
        if kind == "returns nothing":
            return None
        if kind == "drops a result":
            output.args = ((),)
        if kind == "returns another dtype":
            with gm.graph.inserting_before(output):
                output.args = ((gm.graph.call_function(aten._to_copy.default, (output.args[0][0],), {"dtype": torch.int32}),),)
        if kind == "adds an input":
            with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
                gm.graph.placeholder("extra").meta["val"] = None
        first = next(node for node in gm.graph.nodes if node.op == "call_function")
        if kind == "reads what comes later":
            first.args = (output.args[0][0], first.args[1])
        if kind == "calls what cannot be called":
            first.target = aten.sub.Tensor._schema
        if kind == "leaves out an argument":
            first.args = first.args[:1]
        if kind == "returns no tuple":
            output.args = (output.args[0][0],)
        if kind == "invalid arguments":
            first.args = (first.args[0], "text")
        if kind == "has two outputs":
            gm.graph.create_node("output", "output", (output.args[0],))
        if kind == "drops metadata":
            first.args = first.args[::-1]
            first.args[0].meta.clear()
        if kind == "calls a module":
            gm.add_module("relu", torch.nn.ReLU())
            with gm.graph.inserting_before(output):
                output.args = ((gm.graph.call_module("relu", (output.args[0][0],)),),)
        if kind == "writes to an input":
            first.target = aten.sub_.Tensor
        return gm

    return change


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("raises", "no luck"),
        ("returns nothing", "expected the pass to return a GraphModule"),
        ("drops a result", "expected 1 results, got 0(?s:.*)fix: "),
        ("returns another dtype", r"expected float32\[3\] on cpu, got int32\[3\] on cpu(?s:.*)fix: "),
        ("adds an input", r"expected \['args_0', 'args_1'\], got \['extra', 'args_0', 'args_1'\](?s:.*)fix: "),
        ("invalid arguments", "its arguments are not valid"),
        ("reads what comes later", "used before it has been defined"),
        ("calls what cannot be called", "Callable is expected"),
        ("leaves out an argument", "missing value for argument 'other'"),
        ("returns no tuple", "expected a flat tuple, got a single value(?s:.*)fix: "),
        ("has two outputs", "expected one output node, got 2"),
        ("drops metadata", r"placeholder args_1: expected meta\['val'\], found none"),
        ("calls a module", "expected calls of operators only, got a call_module node(?s:.*)fix: "),
        ("writes to an input", r"aten.sub_.Tensor: expected a call that writes to no argument(?s:.*)fix: "),
    ],
)
def test_errors_name_the_pass(kind: str, reason: str) -> None:
    bad = Pass.from_function(_failing(kind), name="bad")
    # A pass that says that it changed nothing is not believed.
    for item in (bad, Pass("bad", lambda gm: not bad.run(gm))):
        with pytest.raises(LoweringError, match=rf"pass bad failed after passes \[one\]: .*{reason}") as caught:
            AtenLowering(pipeline=Pipeline((Pass("one", lambda gm: False), item))).lower(program(), Oracle())
        assert any("graph before bad" in note for note in caught.value.__notes__)


def test_a_pass_says_whether_it_changed_the_graph() -> None:
    for said, name in ((None, "NoneType"), (program().module, "GraphModule")):
        with pytest.raises(LoweringError, match=f"True or False, got {name}"):
            AtenLowering(pipeline=Pipeline((Pass("bad", lambda gm, said=said: said),))).lower(program(), Oracle())


def test_each_pass_infers_what_it_changes_anew() -> None:
    def cast(dtype: torch.dtype) -> Any:
        def change(gm: torch.fx.GraphModule) -> bool:
            [old] = gm.graph.find_nodes(op="call_function", target=aten.max.dim)
            with gm.graph.inserting_before(old):
                values = gm.graph.call_function(aten._to_copy.default, (gm.graph.find_nodes(op="placeholder")[0],), {"dtype": dtype})
                old.replace_all_uses_with(gm.graph.call_function(aten.max.dim, (values, 1)))
            return True

        return change

    given = whole(lambda x: aten._to_copy.default(x.max(1).values, dtype=torch.float32), (torch.randn(2, 3, dtype=torch.float64),))
    pipeline = Pipeline((Pass("one", cast(torch.float16)), Pass("two", cast(torch.bfloat16))))
    lowered = AtenLowering(pipeline=pipeline).lower(given, Oracle())
    [part] = lowered.module.graph.find_nodes(op="call_function", target=operator.getitem)
    assert part.meta["val"].dtype == torch.bfloat16


def test_two_threads_never_see_each_others_pipeline() -> None:
    """Each compiles with a pipeline of its own while the other does."""
    meet = threading.Barrier(2, timeout=20)

    def only(given: Any, target: Any) -> list[Any]:
        def change(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> torch.fx.GraphModule:
            meet.wait()
            for node in gm.graph.find_nodes(op="call_function", target=aten.sub.Tensor):
                node.target = target
            return gm

        return targets(AtenLowering(pipeline=Pipeline((Pass.from_function(change),))).lower(given, Oracle(target)))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        left, right = pool.map(only, (program(), program()), (aten.mul.Tensor, aten.maximum.default))
    assert left[0] is aten.mul.Tensor
    assert right[0] is aten.maximum.default


def test_broken_promise() -> None:
    pipeline = Pipeline((Pass("clean", lambda gm: False, removes=frozenset({aten.sub.Tensor})),))
    with pytest.raises(LoweringError, match=r"promised to remove aten\.sub\.Tensor"):
        AtenLowering(pipeline=pipeline).lower(program(), Oracle())


def test_debug_names_the_pass_that_changes_values() -> None:
    pipeline = standard_pipeline().with_pass(Pass.from_function(sub_to_mul))
    AtenLowering(pipeline=pipeline).lower(program(), Oracle())
    with pytest.raises(LoweringError, match="pass sub_to_mul changes the values of result 0"):
        AtenLowering(LoweringOptions(lowering_debug=True), pipeline).lower(program(), Oracle())


def test_debug_has_values_within_a_fake_mode() -> None:
    """``torch.compile`` lowers in its fake mode."""
    given = program()
    lowering = AtenLowering(LoweringOptions(lowering_debug=True), Pipeline((Pass.from_function(sub_to_mul),)))
    with (
        next(iter(given.module.graph.nodes)).meta["val"].fake_mode,
        pytest.raises(LoweringError, match="pass sub_to_mul changes the values of result 0"),
    ):
        lowering.lower(given, Oracle())


def test_debug_passes_correct_programs() -> None:
    def compute(x: torch.Tensor, i: torch.Tensor) -> Any:
        return torch.softmax(x, 1) + torch.rand_like(x), x[i]

    shapes = (({0: torch.export.Dim("n", min=2, max=9)}, None),)
    given = whole(compute, (torch.randn(4, 3), torch.tensor([0, 1])), shapes)
    lowered = AtenLowering(LoweringOptions(lowering_debug=True)).lower(given, Oracle())
    assert aten.rand_like.default in targets(lowered)


def test_debug_names_the_pass_that_changes_what_results_share() -> None:
    def drop_copy(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> torch.fx.GraphModule:
        for node in gm.graph.find_nodes(op="call_function", target=aten.clone.default):
            node.replace_all_uses_with(node.args[0])
        return gm

    pipeline = standard_pipeline().with_pass(Pass.from_function(drop_copy))
    with pytest.raises(LoweringError, match="pass drop_copy changes what result 0 shares memory with: expected nothing, got input 0"):
        AtenLowering(LoweringOptions(lowering_debug=True), pipeline).lower(whole(lambda x: x.clone(), (torch.ones(2),)), Oracle())


def test_new_calls_inherit_their_place() -> None:
    def scale(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> torch.fx.GraphModule:
        (node,) = gm.graph.find_nodes(op="call_function", target=aten.sub.Tensor)
        with gm.graph.inserting_after(node):
            new = gm.graph.call_function(aten.mul.Tensor, (node, 3))
        node.replace_all_uses_with(new)
        new.args = (node, 3)
        return gm

    lowered = AtenLowering(pipeline=Pipeline((Pass.from_function(scale),))).lower(program(), Oracle())
    (new,) = lowered.module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    (old,) = lowered.module.graph.find_nodes(op="call_function", target=aten.sub.Tensor)
    assert new.meta["stack_trace"] == old.meta["stack_trace"]
    assert new.meta["nn_module_stack"] == old.meta["nn_module_stack"]


def test_a_tensor_that_a_pass_adds_is_a_weight() -> None:
    def shift(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> torch.fx.GraphModule:
        gm.register_buffer("shift", torch.tensor([5.0, 6.0, 7.0]))
        (node,) = gm.graph.find_nodes(op="call_function", target=aten.sub.Tensor)
        with gm.graph.inserting_before(node):
            node.args = (node.args[0], gm.graph.get_attr("shift"))
        return gm

    lowered = AtenLowering(pipeline=Pipeline((Pass.from_function(shift),))).lower(program(), Oracle())
    assert lowered.inputs[-1].name.startswith("shift")
    assert not lowered.module.graph.find_nodes(op="get_attr")
    x = torch.ones(3)
    torch.testing.assert_close(run(lowered, x, x)[0], x - torch.tensor([5.0, 6.0, 7.0]) + 1)
