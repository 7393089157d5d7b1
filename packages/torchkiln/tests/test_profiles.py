"""Named profiles: one plan for each, the tightest runs, and sizes in none are outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln import Profile
from torchkiln_runtime import ReferenceEngine, ShapeDispatch
from torchkiln_testing import OpClass, assert_same


class Attend(torch.nn.Module):
    """``[N, L, 8], [2 * N, 3] -> [N, L, 8]``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, tokens: torch.Tensor, *, more: torch.Tensor) -> torch.Tensor:
        logits = self.linear(tokens) @ tokens.transpose(1, 2)
        return logits.softmax(-1) @ tokens + more.reshape(tokens.shape[0], 1, 6).sum(-1, keepdim=True)


NET = Attend().eval()
SMALL = Profile("small", {"batch": (1, 1, 2), "length": (1, 16, 32)})
LARGE = Profile("large", {"batch": (4, 8, 16)})
EXACT = Profile("exact", {"batch": (8, 8, 8), ("tokens", 1): (16, 16, 16)})


def example(rows: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(rows, length, 8),), {"more": torch.randn(2 * rows, 3)}


def compiled_net(*profiles: Profile, **options: Any) -> torchkiln.CompiledModule:
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=1, max=128)
    args, kwargs = example(3, 5)
    settings = {"engine": "reference", "min_block_size": 1, "profiles": list(profiles)} | options
    shapes = {"tokens": {0: batch, 1: length}, "more": {0: 2 * batch}}
    return torchkiln.compile(NET, args, kwargs, dynamic_shapes=shapes, **settings)


def check(compiled: Any, rows: int, length: int) -> None:
    args, kwargs = example(rows, length)
    with torch.no_grad():
        assert_same(NET(*args, **kwargs), compiled(*args, **kwargs), OpClass.MATMUL)


def dispatch_of(compiled: torchkiln.CompiledModule) -> ShapeDispatch:
    [made] = compiled.parts[1].segments.values()
    assert isinstance(made.engine, ShapeDispatch)
    return made.engine


def profile_of(compiled: torchkiln.CompiledModule, rows: int, length: int) -> str:
    dispatch = dispatch_of(compiled)
    engine = dispatch.engine_for([tuple(tensor.shape) for tensor in (example(rows, length)[0][0], example(rows, length)[1]["more"])])
    return next(item.name for item in dispatch.candidates if item.engine is engine)


def test_each_size_runs_on_the_tightest_profile() -> None:
    compiled = compiled_net(SMALL, LARGE, EXACT)
    chosen = {sizes: profile_of(compiled, *sizes) for sizes in ((1, 1), (2, 32), (4, 128), (8, 16), (8, 17), (16, 1))}
    assert chosen == {(1, 1): "small", (2, 32): "small", (4, 128): "large", (8, 16): "exact", (8, 17): "large", (16, 1): "large"}
    for sizes in chosen:
        check(compiled, *sizes)


@pytest.mark.parametrize("sizes", [(3, 5), (2, 33), (17, 4), (4, 129)])
def test_sizes_in_no_profile_are_outside(sizes: tuple[int, int]) -> None:
    args, kwargs = example(*sizes)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="expected"):
        compiled_net(SMALL, LARGE)(*args, **kwargs)
    check(compiled_net(SMALL, LARGE, out_of_profile="rebuild"), *sizes)
    check(compiled_net(SMALL, LARGE, out_of_profile="torch"), *sizes)


def test_the_message_names_every_profile() -> None:
    args, kwargs = example(3, 5)
    with pytest.raises(
        torchkiln.ShapeOutOfProfile, match=r"profile small: input 'tokens', dimension 0: expected a size in \[1, 2\], got 3"
    ):
        compiled_net(SMALL, LARGE)(*args, **kwargs)


def test_a_profile_of_one_size_is_a_static_network() -> None:
    dispatch = dispatch_of(compiled_net(EXACT, LARGE))
    engine = dispatch.engine_for([(8, 16, 8), (16, 3)])
    assert isinstance(engine, ReferenceEngine)
    assert all(isinstance(size, int) for binding in (*engine.inputs, *engine.outputs) for size in binding.shape)


def test_plans_are_built_and_reported_by_profile() -> None:
    pytest.importorskip("tensorrt_rtx")
    report = compiled_net(SMALL, EXACT, targets=["sm_89"]).report
    [segment] = report.segments
    assert segment.plan_bytes is not None
    assert [target.rpartition(", ")[2] for target in segment.plan_bytes] == ["profile small", "profile exact"]
    assert {(size.min, size.opt, size.max, size.assumed) for size in report.sizes} == {(1, 1, 8, False), (1, 16, 32, False)}
    assert "1 to 32, tuned for 16" in str(report)


def test_one_profile_is_the_range() -> None:
    compiled = compiled_net(SMALL)
    assert [type(made.engine) for made in compiled.parts[1].segments.values()] == [ReferenceEngine]
    check(compiled, 2, 32)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="expected 1 to 2, got 3"):
        check(compiled, 3, 32)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (Profile("p", {"rows": (1, 1, 2)}), "'rows' is not a dynamic dimension; expected one of .*'batch', 'length'"),
        (Profile("p", {("tokens", 2): (1, 1, 2)}), "is not a dynamic dimension"),
        (Profile("p", {"batch": (1, 1, 65)}), "'batch': expected sizes within 1 to 64"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(profile: Profile, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compiled_net(profile)


def test_a_report_has_the_sizes_of_the_profiles() -> None:
    x, rows = torch.randn(4, 3), Dim("rows", min=1, max=64)
    options = {"dynamic_shapes": ({0: rows},), "profiles": [Profile("few", {"rows": (2, 3, 5)})]}
    [size] = torchkiln.explain(torch.nn.ReLU(), (x,), **options).sizes
    assert (size.min, size.opt, size.max) == (2, 3, 5)
    with pytest.raises(ValueError, match="'lines' is not a dynamic dimension"):
        torchkiln.explain(torch.nn.ReLU(), (x,), profiles=[Profile("few", {"lines": (2, 3, 5)})])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Profile("", {}), ValueError),
        (lambda: Profile("p", {"batch": (3, 2, 1)}), ValueError),
        (lambda: Profile("p", {"batch": (1, 2)}), TypeError),
        (lambda: Profile("p", {3: (1, 2, 3)}), TypeError),
        (lambda: Profile("p", [("batch", (1, 2, 3))]), TypeError),
        (lambda: compiled_net(SMALL, Profile("small", {})), ValueError),
        (lambda: compiled_net("small"), TypeError),
    ],
)
def test_what_is_no_profile_is_refused(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"[Pp]rofile"):
        make()


def test_profiles_of_inputs_and_of_unbounded_dimensions() -> None:
    ranged = torchkiln.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))
    settings: dict[str, Any] = {"engine": "reference", "min_block_size": 1}
    compiled = torchkiln.compile(torch.nn.ReLU(), inputs=[ranged], profiles=[Profile("p", {("input", 0): (2, 3, 4)})], **settings)
    assert_same(torch.ones(4, 4), compiled(torch.ones(4, 4)))
    with pytest.raises(torchkiln.ShapeOutOfProfile):
        compiled(torch.ones(5, 4))
    unbounded = torchkiln.compile(
        torch.nn.ReLU(),
        (torch.ones(3, 4),),
        dynamic_shapes=({0: Dim("rows")},),
        profiles=[Profile("p", {"rows": (1, 3, 1000)})],
        **settings,
    )
    assert_same(torch.ones(1000, 4), unbounded(torch.ones(1000, 4)))


def test_profiles_survive_saving(tmp_path: Path) -> None:
    torchkiln.save(compiled_net(SMALL, LARGE, EXACT), tmp_path / "net.kiln")
    loaded = torchkiln.load(tmp_path / "net.kiln", engine="reference")
    for sizes in ((1, 1), (2, 32), (4, 128), (8, 16)):
        check(loaded, *sizes)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="no profile takes"):
        check(loaded, 3, 5)


@pytest.mark.gpu
def test_profiles_on_tensorrt(tmp_path: Path) -> None:
    net = Attend().eval().cuda()
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=1, max=128)

    def arguments(rows: int, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = example(rows, size)
        return (args[0].cuda(),), {"more": kwargs["more"].cuda()}

    args, kwargs = arguments(3, 5)
    compiled = torchkiln.compile(
        net,
        args,
        kwargs,
        dynamic_shapes={"tokens": {0: batch, 1: length}, "more": {0: 2 * batch}},
        profiles=[SMALL, LARGE, EXACT],
        engine="tensorrt",
        min_block_size=1,
    )
    torchkiln.save(compiled, tmp_path / "net.kiln")
    for program in (compiled, torchkiln.load(tmp_path / "net.kiln", engine="tensorrt")):
        for sizes in ((1, 1), (2, 32), (4, 128), (8, 16), (8, 17), (16, 1), (8, 16)):
            args, kwargs = arguments(*sizes)
            with torch.no_grad():
                assert_same(net(*args, **kwargs), program(*args, **kwargs), OpClass.MATMUL)
        args, kwargs = arguments(3, 5)
        with pytest.raises(torchkiln.ShapeOutOfProfile, match="no profile takes"):
            program(*args, **kwargs)
