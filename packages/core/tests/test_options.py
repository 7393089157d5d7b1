"""Options from keywords: home stage, types, ranges, suggestions."""

from __future__ import annotations

import pytest
import torch

from torchkiln_core import Options


def test_defaults():
    assert Options.from_keywords({}) == Options()
    assert [item.metadata["keyed"] for item in Options.fields() if item.name == "allow_tf32"] == [True]
    assert all(item.metadata["doc"].endswith(".") for item in Options.fields())
    assert len({item.name for item in Options.fields()}) == len(Options.fields())


def test_every_keyword_finds_its_stage():
    seen = []
    options = Options.from_keywords(
        {
            "lowering_debug": True,
            "min_block_size": 1,
            "torch_executed_ops": ["aten.relu", torch.ops.aten.add.Tensor],
            "torch_executed_modules": ("head*", torch.nn.Linear),
            "require_full_compilation": True,
            "targets": ["sm_89", "sm_86"],
            "workspace_bytes": 1 << 30,
            "allow_tf32": True,
            "optimization_level": 0,
            "engine": "reference",
            "weights": "follow",
            "on_report": seen.append,
        }
    )
    assert options.lowering.lowering_debug
    assert options.partition.torch_executed_ops == ("aten.relu", torch.ops.aten.add.Tensor)
    assert options.partition.torch_executed_modules == ("head*", torch.nn.Linear)
    assert options.build.targets == ("sm_89", "sm_86")
    assert options.runtime.weights == "follow"
    options.runtime.on_report("report")
    assert seen == ["report"]
    assert options.keyed() == {
        "targets": ("sm_89", "sm_86"),
        "workspace_bytes": 1 << 30,
        "allow_tf32": True,
        "optimization_level": 0,
        "deterministic": None,
        "benchmark": None,
    }


def test_sets_have_one_order_in_every_process():
    assert Options.from_keywords({"targets": {"sm_89", "sm_120", "sm_86"}}).build.targets == ("sm_120", "sm_86", "sm_89")
    assert Options.from_keywords({"targets": frozenset({"sm_89", "sm_86"})}).build.targets == ("sm_86", "sm_89")


def test_none_is_taken_where_it_is_the_default():
    assert Options.from_keywords({"workspace_bytes": None, "on_report": None, "optimization_level": None}) == Options()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"min_block_sise": 3}, "unknown option 'min_block_sise': did you mean 'min_block_size'?"),
        ({"zzz": 3}, "unknown option 'zzz': known options: allow_tf32, "),
        ({"min_block_size": 0}, "min_block_size: expected at least 1, got 0"),
        ({"optimization_level": 6}, "optimization_level: expected 0 to 5, got 6"),
        ({"workspace_bytes": 0}, "workspace_bytes: expected a positive number of bytes, got 0"),
        ({"deterministic": True, "benchmark": True}, "benchmark: expected False with deterministic=True"),
        ({"engine": "cuda"}, "engine: expected one of auto, tensorrt, reference, got 'cuda'"),
        ({"weights": "thaw"}, "weights: expected one of auto, frozen, follow, got 'thaw'"),
    ],
)
def test_values_out_of_range(keywords, message):
    with pytest.raises(ValueError) as caught:
        Options.from_keywords(keywords)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"min_block_size": "5"}, "int, got str '5'"),
        ({"min_block_size": True}, "int, got bool True"),
        ({"min_block_size": 2.0}, "int, got float 2.0"),
        ({"min_block_size": None}, "int, got NoneType None"),
        ({"lowering_debug": 1}, "bool, got int 1"),
        ({"workspace_bytes": "1"}, "int | None, got str '1'"),
        ({"workspace_bytes": 1.5}, "int | None, got float 1.5"),
        ({"optimization_level": True}, "int | None, got bool True"),
        ({"on_report": "print"}, "Callable[[Any], None] | None, got str 'print'"),
        ({"targets": "sm_89"}, "tuple[str, ...], got str 'sm_89'; write ['sm_89']"),
        ({"targets": [89]}, "tuple[str, ...], got tuple (89,)"),
        ({"torch_executed_ops": "aten.relu"}, "tuple[str | Callable[..., Any], ...], got str 'aten.relu'; write ['aten.relu']"),
        ({"torch_executed_modules": [torch.nn.Identity()]}, "tuple[str | type, ...], got tuple (Identity(),)"),
        ({"autocast_calibration": [torch.zeros(())]}, "tuple[tuple[Any, ...], ...], got tuple (tensor(0.),)"),
        ({"node_overrides": [("relu", "torch", "engine")]}, "tuple[tuple[str, str], ...], got tuple (('relu', 'torch', 'engine'),)"),
        ({"engine": None}, "Literal['auto', 'tensorrt', 'reference'], got NoneType None"),
        ({"engine": ["auto"]}, "Literal['auto', 'tensorrt', 'reference'], got tuple ('auto',)"),
    ],
    ids=str,
)
def test_values_of_another_type(keywords, expected):
    with pytest.raises(TypeError) as caught:
        Options.from_keywords(keywords)
    assert str(caught.value) == f"{next(iter(keywords))}: expected {expected}"


def test_a_tuple_of_anything_holds_anything():
    x = torch.zeros(2)
    (inputs,) = Options.from_keywords({"autocast_calibration": [(x, 3, None)]}).lowering.autocast_calibration
    assert inputs[0] is x
    assert inputs[1:] == (3, None)
