"""Arguments: other forms of the same call are accepted, other arguments are refused by name."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch.export import AdditionalInputs, Dim, ShapesCollection

import torchkiln
from torchkiln_lowering import Pass, Pipeline
from torchkiln_testing import assert_same


class Gated(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 2.0, *, gate: torch.Tensor | None = None, double: bool = False) -> torch.Tensor:
        y = x * scale
        if gate is not None:
            y = y * torch.sigmoid(gate)
        return y + y if double else y


X, GATE = torch.randn(2, 3), torch.randn(2, 3)


def gated(**options: Any) -> Any:
    settings = {"engine": "reference", "min_block_size": 1} | options
    return torchkiln.compile(Gated(), (X,), {"gate": GATE, "double": True}, **settings)


def test_keywords_in_another_order() -> None:
    compiled = gated()
    expected = Gated()(X, gate=GATE, double=True)
    assert_same(expected, compiled(X, double=True, gate=GATE))
    assert_same(expected, compiled(x=X, gate=GATE, double=True))


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "words"),
    [
        ((X,), {"gate": GATE, "double": False}, ValueError, ["double", "True", "False", "compile again"]),
        ((X,), {"gate": GATE}, TypeError, ["structure"]),
        ((X, 2.0), {"gate": GATE, "double": True}, TypeError, ["structure"]),
        ((X.double(),), {"gate": GATE, "double": True}, ValueError, ["x", "float32", "float64"]),
        ((X[0],), {"gate": GATE, "double": True}, ValueError, ["x", "rank 2", "[3]"]),
        ((X[:1],), {"gate": GATE, "double": True}, torchkiln.ShapeOutOfProfile, ["x", "dimension 0", "2", "1", "dynamic_shapes"]),
        ((X.to("meta"),), {"gate": GATE, "double": True}, ValueError, ["x", "cpu", "meta"]),
        ((3,), {"gate": GATE, "double": True}, TypeError, ["x", "tensor", "int"]),
    ],
)
def test_other_arguments_are_refused_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        gated()(*args, **kwargs)
    for word in words:
        assert word in str(caught.value)


def test_dynamic_dimensions_share_their_symbol_and_their_range() -> None:
    batch = Dim("batch", min=2, max=5)

    class Sum(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    compiled = torchkiln.compile(Sum(), (X, X), dynamic_shapes=({0: batch}, {0: batch}), engine="reference", min_block_size=1)
    wide = torch.randn(5, 3)
    assert_same(wide + wide, compiled(wide, wide))
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="b dimension 0: expected 5 as in an earlier argument, got 2"):
        compiled(wide, X)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="a dimension 0: expected 2 to 5, got 6"):
        compiled(torch.randn(6, 3), torch.randn(6, 3))


def test_a_number_may_be_divided_by_a_dimension_that_declares_no_minimum() -> None:
    class Share(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erfinv(torch.arange(64 // x.shape[0]) / 100.0).cos()

    compiled = torchkiln.compile(Share(), (X,), dynamic_shapes=({0: Dim("b", max=8)},), engine="reference", min_block_size=1)
    assert [segment.kind for segment in compiled.report.segments] == ["engine", "torch", "engine"]
    for rows in (1, 8):
        assert_same(Share()(torch.zeros(rows, 3)), compiled(torch.zeros(rows, 3)))


def test_inputs_describe_arguments_by_shape() -> None:
    description = torchkiln.Input(min_shape=(1, 3), opt_shape=(4, 3), max_shape=(8, 3))
    compiled = torchkiln.compile(torch.nn.Softmax(-1), inputs=[description], engine="reference", min_block_size=1)
    for rows in (1, 4, 7, 8):
        x = torch.randn(rows, 3)
        assert_same(torch.softmax(x, -1), compiled(x))
    with pytest.raises(torchkiln.ShapeOutOfProfile):
        compiled(torch.randn(9, 3))


@pytest.mark.parametrize(
    "shapes",
    [
        {},
        {"min_shape": (1,)},
        {"shape": (1,), "min_shape": (1,), "opt_shape": (1,), "max_shape": (1,)},
        {"min_shape": (2,), "opt_shape": (1,), "max_shape": (3,)},
        {"min_shape": (1, 1), "opt_shape": (1,), "max_shape": (3,)},
    ],
)
def test_contradicting_inputs_are_refused(shapes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Input"):
        torchkiln.Input(**shapes)


def test_arguments_must_be_a_tuple() -> None:
    with pytest.raises(TypeError, match=r"args: expected a tuple.*\(tensor,\)"):
        torchkiln.compile(Gated(), X)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="inputs"):
        torchkiln.compile(Gated(), (X,), inputs=[torchkiln.Input(shape=(2, 3))])
    with pytest.raises(TypeError, match="kwargs"):
        torchkiln.compile(Gated(), (X,), [GATE])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"Gated\(.*\) takes, got 0 positional arguments and no names: missing a required argument: 'x'.*inputs="),
        ({"args": (X, 2.0, X)}, "got 3 positional arguments and no names: too many positional arguments"),
        ({"args": (X,), "kwargs": {"gates": GATE}}, "got an unexpected keyword argument 'gates'"),
        ({"args": (X,), "kwargs": {1: GATE}}, "kwargs: expected names of arguments, got int 1"),
        ({"args": {"x": X}}, "args: expected a tuple of example arguments, got dict; give arguments by name in kwargs="),
        ({"args": (X,), "dynamic_shapes": 3}, "dynamic_shapes: expected a tuple with an entry for each argument.*got int 3"),
        ({"inputs": []}, "missing a required argument: 'x'"),
    ],
)
def test_examples_that_no_call_takes_are_refused(given: dict[str, Any], words: str) -> None:
    for function in (torchkiln.compile, torchkiln.explain):
        with pytest.raises(TypeError, match=words):
            function(Gated(), **given)


def test_collections_of_shapes_are_taken() -> None:
    rows, collection, more = Dim("rows", min=1, max=9), ShapesCollection(), AdditionalInputs()
    collection[X] = (rows, None)
    more.add((torch.randn(5, 3),))
    profile = torchkiln.Profile("few", {("input", 0): (2, 3, 4)})
    for shapes in (collection, more):
        [size] = torchkiln.explain(torch.nn.ReLU(), (X,), dynamic_shapes=shapes, profiles=[profile]).sizes
        assert (size.min, size.opt, size.max) == (2, 3, 4)
    with pytest.raises(ValueError, match="dynamic_shapes: expected a ShapesCollection of the example arguments"):
        torchkiln.explain(torch.nn.ReLU(), (X.clone(),), dynamic_shapes=collection)


def test_a_failing_export_with_dynamic_shapes_points_at_them() -> None:
    with pytest.raises(torchkiln.ExportError, match="fix: give dynamic_shapes an entry for each argument"):
        torchkiln.compile(torch.nn.ReLU(), (X,), dynamic_shapes=({5: Dim("rows")},), engine="reference")


def test_an_input_on_a_device_that_is_not_here_is_refused() -> None:
    description = torchkiln.Input((2, 3), device="cuda:99")
    with pytest.raises(ValueError, match=r"Input: expected a torch\.float32 tensor \(2, 3\) on cuda:99"):
        torchkiln.compile(torch.nn.ReLU(), inputs=[description])


def test_unknown_options_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match="did you mean 'min_block_size'"):
        gated(min_blok_size=2)


def test_the_dictionary_of_torch_compile_is_refused_with_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"options: expected each option as a keyword, .*min_block_size=1, got dict; .* torch\.compile"):
        gated(options={"min_block_size": 1})


def test_one_string_in_place_of_a_list_is_refused_with_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"targets: expected tuple\[str, \.\.\.\], got str 'sm_89'; write \['sm_89'\]"):
        gated(targets="sm_89")
    with pytest.raises(TypeError, match=r"min_block_size: expected int, got str '3'$"):
        gated(min_block_size="3")


def test_a_model_that_cannot_be_exported_says_why() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(torchkiln.ExportError) as caught:
        torchkiln.compile(Branches(), (X,))
    assert "Branches cannot be exported" in str(caught.value)
    assert "fix:" in str(caught.value)
    assert caught.value.stage == "export"


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    pytest.importorskip("tensorrt_rtx")
    with pytest.raises(torchkiln.BuildError, match="sm_89") as caught:
        gated(targets=["sm_88"])
    assert "sm_88" in str(caught.value)


def test_tensorrt_without_a_gpu_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(torchkiln.BuildError, match="engine='tensorrt'"):
        torchkiln.compile(Gated(), (X,), engine="tensorrt")


def minus(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a - b) + a * 2


@pytest.mark.parametrize("examples", [(X, X), (X, X[:]), (X, X[1]), (X.t(), X.t())])
def test_examples_that_share_memory_stay_two_arguments(examples: tuple[torch.Tensor, torch.Tensor]) -> None:
    compiled = torchkiln.compile(minus, examples, engine="reference", min_block_size=1)
    a, b = (torch.randn(example.shape) for example in examples)
    assert_same(minus(a, b), compiled(a, b))
    assert_same(minus(a, a), minus(a, a))


def test_an_example_that_is_a_weight_stays_an_argument() -> None:
    model = Scaled()
    compiled = torchkiln.compile(model, (model.weight,), engine="reference", min_block_size=1)
    x = torch.randn(3)
    with torch.no_grad():
        assert_same(model(x), compiled(x))


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2) + self.weight


def test_a_changed_argument_may_share_no_memory_with_another() -> None:
    def change(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    rows = torch.randn(6, 4)
    compiled = torchkiln.compile(change, (rows[:4], rows[2:]), engine="reference", min_block_size=1)
    with pytest.raises(ValueError, match=r"a and b.*no shared memory.*copy"):
        compiled(rows[:4], rows[2:])
    wide = torch.randn(4, 8)
    expected, before = wide.clone(), wide[:, 4:] * 2
    expected[:, :4] += 1
    assert_same(before, compiled(wide[:, :4], wide[:, 4:]))
    assert_same(expected, wide)


def test_memory_that_two_storages_share_counts_too() -> None:
    def change(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    array = numpy.arange(8, dtype=numpy.float32)
    compiled = torchkiln.compile(change, (torch.ones(4), torch.ones(4)), engine="reference", min_block_size=1)
    for other in (array[:4], array[3:7]):
        with pytest.raises(ValueError, match=r"a and b.*no shared memory.*copy"):
            compiled(torch.from_numpy(array[:4]), torch.from_numpy(other))
    assert_same(torch.arange(1.0, 5) * torch.arange(4.0, 8), compiled(torch.from_numpy(array[:4]), torch.from_numpy(array[4:])))


def test_an_empty_tensor_may_be_given_twice() -> None:
    def change(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return torch.relu(a) + b

    empty = torch.empty(0, 3)
    compiled = torchkiln.compile(change, (torch.empty(0, 3), torch.empty(0, 3)), engine="reference", min_block_size=1)
    assert_same(empty, compiled(empty, empty))


def test_a_tensor_without_elements_overlaps_nothing() -> None:
    def change(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a.add_(1)
        return torch.relu(a), torch.relu(b)

    array = numpy.zeros(8, dtype=numpy.float32)
    compiled = torchkiln.compile(change, (torch.ones(8), torch.ones(0)), engine="reference", min_block_size=1)
    assert_same((torch.ones(8), torch.ones(0)), compiled(torch.from_numpy(array), torch.from_numpy(array[4:4])))


def test_an_argument_is_given_once() -> None:
    def sum_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + y)

    compiled = torchkiln.compile(sum_of, (X,), {"y": X}, engine="reference", min_block_size=1)
    with pytest.raises(TypeError, match="argument y: expected one value"):
        compiled(X, X, y=X)


def test_a_dict_argument_may_have_its_keys_in_another_order() -> None:
    def difference(pair: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.relu(pair["a"] - pair["b"])

    compiled = torchkiln.compile(difference, ({"a": X, "b": GATE},), engine="reference", min_block_size=1)
    assert_same(difference({"a": X, "b": GATE}), compiled({"b": GATE, "a": X}))
    with pytest.raises(TypeError, match="structure"):
        compiled({"a": X})
    with pytest.raises(TypeError, match="tensor"):
        compiled({"a": X, "b": (GATE,)})


def test_tensors_that_engines_cannot_take_are_refused() -> None:
    compiled = torchkiln.compile(torch.relu, (X,), engine="reference", min_block_size=1)
    with pytest.raises(ValueError, match="dense"):
        compiled(X.to_sparse())
    with pytest.raises(TypeError, match=r"torch\.func"):
        torch.vmap(compiled)(torch.randn(2, 2, 3))
    with pytest.raises(torchkiln.ExportError, match="cannot be exported again"):
        torch.export.export(torch.nn.Sequential(compiled), (X,))


@pytest.mark.parametrize(
    "wrong",
    [{"shape": "ab"}, {"shape": (-1, 2)}, {"shape": (1.5,)}, {"shape": (1,), "dtype": "float32"}, {"shape": (1,), "device": "oven"}],
)
def test_an_input_of_wrong_types_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Input: .*: expected"):
        torchkiln.Input(**wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lowering": [print]}, r"lowering: expected a torchkiln_lowering\.Pipeline, got tuple"),
        ({"converters": [torch.relu]}, r"converters: expected functions under @torchkiln_converters\.converter, got <built-in"),
    ],
)
def test_extensions_of_another_type_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        torchkiln.compile(torch.nn.ReLU(), (torch.ones(3),), engine="reference", **options)


def test_a_pipeline_of_ones_own_is_used() -> None:
    ran: list[str] = []

    def note(module: torch.fx.GraphModule) -> bool:
        ran.append("note")
        return False

    for _ in range(2):
        pipeline = Pipeline((Pass("note", note),))
        torchkiln.compile(torch.nn.ReLU(), (torch.ones(3),), engine="reference", lowering=pipeline)
    assert ran == ["note", "note"]
    torchkiln.compile(torch.nn.ReLU(), (torch.ones(3),), engine="reference")
    assert ran == ["note", "note"]
