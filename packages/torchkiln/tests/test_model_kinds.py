"""What may be compiled: functions without a signature, TorchScript, exported programs; anything else is refused by name."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

X = torch.randn(3, 4)


def compiled_of(model: Any, args: tuple[Any, ...] | None = (X,), **options: Any) -> Any:
    return torchkiln.compile(model, args, engine="reference", min_block_size=1, **options)


@pytest.mark.parametrize("function", [torch.relu, functools.partial(torch.add, torch.ones(4), alpha=2), torch.nn.Linear(4, 4).forward])
def test_functions_of_every_kind(function: Any) -> None:
    with torch.no_grad():
        assert_same(function(X), compiled_of(function)(X), OpClass.MATMUL)


@pytest.mark.filterwarnings("ignore")
def test_torchscript_modules_and_functions() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    script = torch.jit.script(net)
    compiled = compiled_of(script)
    with torch.no_grad():
        assert_same(net(X), compiled(X), OpClass.MATMUL)
        net[0].weight.mul_(2)
        compiled.refresh()
        assert_same(net(X), compiled(X), OpClass.MATMUL)
        ranged = compiled_of(script, dynamic_shapes=({0: Dim("rows", max=8)},))
        for rows in (2, 8):
            x = torch.randn(rows, 4)
            assert_same(net(x), ranged(x), OpClass.MATMUL)
    assert_same(torch.relu(X), compiled_of(torch.jit.trace(torch.relu, (X,)))(X))


def test_shapes_for_an_exported_program_are_refused() -> None:
    exported = torch.export.export(torch.nn.ReLU(), (X,))
    with pytest.raises(TypeError, match="dynamic_shapes"):
        compiled_of(exported, dynamic_shapes=({0: Dim("rows")},))


@pytest.mark.parametrize("model", [None, 3, "model", torch.nn.ReLU])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match="model: expected a module"):
        compiled_of(model)


@pytest.mark.parametrize("copies", [copy.deepcopy, copy.copy, pickle.dumps])
def test_copies_are_refused_with_the_way_out(copies: Any) -> None:
    with pytest.raises(TypeError, match=r"torchkiln\.save"):
        copies(compiled_of(torch.nn.Linear(4, 4)))


def test_rejections_point_to_the_function() -> None:
    def gamma(x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x)

    [rejection] = compiled_of(gamma).report.rejections
    assert f"{__file__}:{gamma.__code__.co_firstlineno} in gamma" in str(rejection.where)
