"""Sizes outside of what was compiled: an error that says all, PyTorch, or one more compilation that is kept."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, pair: dict[str, torch.Tensor], *, z: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(pair["x"])) * pair["y"][:, :1] + z.sum()


def example(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ({"x": torch.randn(rows, 4), "y": torch.randn(rows, 4)},), {"z": torch.randn(2 * rows, 3)}


def compiled_net(net: torch.nn.Module, **options: Any) -> tuple[torchkiln.CompiledModule, list[torchkiln.Report]]:
    batch, reports = Dim("batch", min=1, max=8), []
    shapes = {"pair": {"x": {0: batch}, "y": {0: batch}}, "z": {0: 2 * batch}}
    args, kwargs = example(3)
    settings = {"engine": "reference", "min_block_size": 1, "on_report": reports.append} | options
    return torchkiln.compile(net, args, kwargs, dynamic_shapes=shapes, **settings), reports


def check(net: torch.nn.Module, compiled: Any, rows: int) -> None:
    args, kwargs = example(rows)
    with torch.no_grad():
        assert_same(net(*args, **kwargs), compiled(*args, **kwargs), OpClass.MATMUL)


def test_an_error_says_where_what_and_how() -> None:
    compiled, _ = compiled_net(Net().eval())
    args, kwargs = example(9)
    with pytest.raises(torchkiln.ShapeOutOfProfile) as caught:
        compiled(*args, **kwargs)
    for words in ("x", "dimension 0", "expected 1 to 8", "got 9", "dynamic_shapes", "out_of_profile"):
        assert words in str(caught.value)


def test_a_default_bound_says_that_it_is_one() -> None:
    compiled = torchkiln.compile(
        torch.nn.ReLU(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("rows")},), engine="reference", min_block_size=1
    )
    assert_same(torch.ones(64, 4), compiled(torch.ones(64, 4)))
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="64 is the default for a dimension without a maximum"):
        compiled(torch.ones(65, 4))


def test_a_loaded_program_does_not_advise_what_it_cannot_do(tmp_path: Path) -> None:
    net = Net().eval()
    compiled, _ = compiled_net(net, out_of_profile="torch")
    check(net, compiled, 9)
    torchkiln.save(compiled, tmp_path / "net.kiln")
    loaded = torchkiln.load(tmp_path / "net.kiln", engine="reference")
    args, kwargs = example(9)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="expected 1 to 8, got 9\n  fix: widen") as caught:
        loaded(*args, **kwargs)
    assert "a loaded program has no model" in str(caught.value)
    assert "out_of_profile='torch'" not in str(caught.value)


def test_outside_runs_in_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    net = Net().eval()
    compiled, reports = compiled_net(net, out_of_profile="torch")
    for rows in (3, 9, 100, 0, 8):
        check(net, compiled, rows)
    assert len(reports) == 1
    [notice] = [record.getMessage() for record in caplog.records if record.name == "torchkiln"]
    assert notice.startswith("this size runs in PyTorch: argument pair_x dimension 0: expected 1 to 8, got 9\n  fix: widen")
    assert "out_of_profile" not in notice


def test_one_more_compilation_serves_its_whole_range() -> None:
    net = Net().eval()
    compiled, reports = compiled_net(net, out_of_profile="rebuild")
    for rows in (3, 9, 12, 16, 10, 8):
        check(net, compiled, rows)
    assert len(reports) == 2
    check(net, compiled, 0)
    check(net, compiled, 17)
    assert len(reports) == 4


def test_weights_are_refreshed_in_what_was_compiled_later() -> None:
    net = Net().eval()
    compiled, _ = compiled_net(net, out_of_profile="rebuild")
    check(net, compiled, 12)
    with torch.no_grad():
        net.linear.weight.mul_(2)
    args, kwargs = example(40)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="have changed since the compilation"):
        compiled(*args, **kwargs)
    compiled.refresh()
    for rows in (3, 12, 40):
        check(net, compiled, rows)


def test_a_model_that_allows_no_wider_range_is_compiled_for_the_size() -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] <= 8 else x * 3

    reports: list[torchkiln.Report] = []
    compiled = torchkiln.compile(
        Branch(),
        (torch.randn(3, 4),),
        dynamic_shapes=({0: Dim("rows", max=8)},),
        engine="reference",
        min_block_size=1,
        out_of_profile="rebuild",
        on_report=reports.append,
    )
    for rows in (3, 8, 9, 12, 9):
        x = torch.randn(rows, 4)
        assert_same(Branch()(x), compiled(x))
    assert len(reports) == 3


def test_what_eager_refuses_stays_refused() -> None:
    for how in ("torch", "rebuild"):
        compiled, _ = compiled_net(Net().eval(), out_of_profile=how)
        args, kwargs = example(9)
        args[0]["y"] = torch.randn(8, 4)
        with pytest.raises((RuntimeError, torchkiln.ShapeOutOfProfile), match=r"size|expected"):
            compiled(*args, **kwargs)


@pytest.mark.parametrize("how", ["torch", "rebuild"])
def test_an_exported_program_keeps_to_its_own_constraints(how: str) -> None:
    def export(dim: Any) -> Any:
        return torch.export.export(torch.nn.ReLU(), (torch.randn(3, 4),), dynamic_shapes=({0: dim},))

    settings: dict[str, Any] = {"engine": "reference", "min_block_size": 1, "out_of_profile": how}
    unbounded = torchkiln.compile(export(Dim("rows", min=1)), **settings)
    for rows in (64, 65, 200):
        assert_same(torch.ones(rows, 4), unbounded(torch.ones(rows, 4)))
    bounded = torchkiln.compile(export(Dim("rows", max=8)), **settings)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="got 9"):
        bounded(torch.ones(9, 4))


def test_threads_compile_once_more_only_once() -> None:
    net = Net().eval()
    compiled, reports = compiled_net(net, out_of_profile="rebuild")
    gate = threading.Barrier(4)

    def call(_: int) -> None:
        gate.wait()
        for rows in (9, 16, 12):
            check(net, compiled, rows)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))
    assert len(reports) == 2


def test_derived_dimensions_are_checked_in_any_order() -> None:
    class Sum(torch.nn.Module):
        def forward(self, double: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.lgamma(double.abs() + 1).sum() + x

    rows = Dim("rows", min=2, max=8)
    compiled = torchkiln.compile(
        Sum(), (torch.randn(6, 2), torch.randn(3, 2)), dynamic_shapes=({0: 2 * rows}, {0: rows}), engine="reference", min_block_size=1
    )
    double, x = torch.randn(16, 2), torch.randn(8, 2)
    assert_same(Sum()(double, x), compiled(double, x), OpClass.REDUCTION)
    for first, second in ((15, 8), (18, 9), (14, 8), (2, 1)):
        with pytest.raises(torchkiln.ShapeOutOfProfile):
            compiled(torch.randn(first, 2), torch.randn(second, 2))


def test_a_derived_dimension_alone_has_its_declared_range() -> None:
    shapes = ({0: 2 * Dim("rows", min=1, max=4)},)
    compiled = torchkiln.compile(torch.nn.ReLU(), (torch.ones(6, 4),), dynamic_shapes=shapes, engine="reference", min_block_size=1)
    assert [(size.min, size.max, size.assumed) for size in compiled.report.sizes] == [(1, 4, False)]
    for rows in (2, 8):
        assert_same(torch.ones(rows, 4), compiled(torch.ones(rows, 4)))
    for rows in (0, 3, 10):
        with pytest.raises(torchkiln.ShapeOutOfProfile, match=rf"with s\d+ from 1 to 4, got {rows}"):
            compiled(torch.ones(rows, 4))


def test_checks_that_passed_are_remembered_without_their_values() -> None:
    compiled, _ = compiled_net(Net().eval())
    args, kwargs = example(4)
    for _ in range(2):
        compiled(*args, **kwargs)
    with pytest.raises(ValueError, match="float64"):
        compiled({"x": args[0]["x"].double(), "y": args[0]["y"]}, **kwargs)
    with pytest.raises(ValueError, match="dense"):
        compiled({"x": args[0]["x"].to_sparse(), "y": args[0]["y"]}, **kwargs)
    with pytest.raises(TypeError, match="expected a tensor"):
        compiled({"x": args[0]["x"].numpy(), "y": args[0]["y"]}, **kwargs)
