"""Branches on sizes of 0 and 1: right, or outside; and inside wherever both branches are the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true, statically_known_true

import torchkiln
from torchkiln.untouched import untouched
from torchkiln_core import ExportError

T = torch.Tensor


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: T) -> Any:
        return self.function(x)


class Outer(nn.Module):
    """Asks two modules further down."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Identity(), Model(function))

    def forward(self, x: T) -> Any:
        return self.inner(x)


def is_long(x: T) -> bool:
    return bool(len(x.shape) == 2 and x.shape[0] > 1)


def checked(x: T) -> T:
    torch._check(x.shape[0] > 1)
    return x * 2


def asserted(x: T) -> T:
    if not x.shape[0] >= 1:
        raise ValueError("nothing to do")
    return x * 2


def matched(x: T) -> T:
    match x.shape[0]:
        case 0:
            return x - 1
        case 1:
            return x * 3
        case _:
            return x * 2


def twice(x: T) -> T:
    y = x * 2
    for _ in range(2):
        if y.shape[0] != 1:
            y = torch.cat([y, y])
    return y


def write_to_copy(x: T, copies: bool) -> T:
    y = x.clone() if copies else x
    y.add_(1)
    return x * y


def write_to_copied(x: T, copies: bool) -> T:
    y = x[:, :2].clone() if copies else x[:, :2]
    x.add_(1)
    return x.sum() * y


def catches(x: T) -> T:
    try:
        return x * 2 if 8 // (x.shape[0] - 1) >= 0 else x
    except ZeroDivisionError:
        return x * 3


def with_chosen_rows(x: T) -> T:
    y = torch.cat([x, x[x[:, 0] > 99]])
    return y * 2 if y.shape[0] > 1 else y * 3


def write_to(make: Callable[[T], T]) -> Callable[[T], T]:
    """A write to what is a view of ``y`` for some sizes, and a copy for others."""

    def function(x: T) -> T:
        y = x * 2
        make(y).add_(1)
        return y + 1

    return function


def write_behind(x: T) -> T:
    y = x * 2
    kept = y.t().contiguous()
    y.add_(1)
    return kept * 1


def no_file() -> Callable[[T], T]:
    made: dict[str, Any] = {}
    exec("import torch\n@torch.no_grad()\ndef f(x):\n    return x + 1 if x.shape[0] > 1 else x * 2", made)  # noqa: S102 - code as a prompt of Python runs it
    function: Callable[[T], T] = made["f"]
    return function


def graph() -> nn.Module:
    made = torch.fx.Graph()
    x = made.placeholder("x")
    most = made.call_function(max, (made.call_method("size", (x, 0)), 2))
    made.output(made.call_function(torch.mul, (x, most)))
    return torch.fx.GraphModule({}, made)


def in_a_branch(x: T) -> T:
    return torch.cond(x.sum() > 100, lambda x: x + 1 if x.shape[0] > 1 else x * 3, lambda x: x * 2, (x,))


FORMS: dict[str, tuple[Callable[[T], Any], set[int]]] = {
    "n > 1": (lambda x: x + 1 if x.shape[0] > 1 else x * 2, {0, 1}),
    "n < 2": (lambda x: x + 1 if x.shape[0] < 2 else x * 2, {0, 1}),
    "n == 1": (lambda x: x + 1 if x.shape[0] == 1 else x * 2, {1}),
    "1 == n": (lambda x: x + 1 if 1 == x.shape[0] else x * 2, {1}),
    "n == 0": (lambda x: x + 1 if x.shape[0] == 0 else x * 2, {0}),
    "n >= 1": (lambda x: x + 1 if x.shape[0] >= 1 else x.sum(), {0}),
    "n > 0": (lambda x: x + 1 if x.shape[0] > 0 else x.sum(), {0}),
    "n != 0": (lambda x: x + 1 if x.shape[0] != 0 else x.sum(), {0}),
    "not n": (lambda x: x.sum() if not x.shape[0] else x * 2, {0}),
    "n": (lambda x: x + 1 if x.shape[0] else x.sum(), {0}),
    "bool(n)": (lambda x: x.sum() + bool(x.shape[0]), {0}),
    "int(n > 1)": (lambda x: x * int(x.shape[0] > 1), {0, 1}),
    "min(n, 1)": (lambda x: x.sum() + min(x.shape[0], 1), {0}),
    "max(n, 1)": (lambda x: x.sum() + max(x.shape[0], 1), {0}),
    "max(n, 2)": (lambda x: x.sum() + max(x.shape[0], 2), set()),
    "min(n, 2)": (lambda x: x.sum() + min(x.shape[0], 2), set()),
    "min(n, 1, 4)": (lambda x: x.sum() + min(x.shape[0], 1, 4), {0}),
    "sym_max": (lambda x: x.sum() + torch.sym_max(x.shape[0], 1), {0}),
    "sym_min": (lambda x: x.sum() + torch.sym_min(1, x.shape[0]), {0}),
    "abs": (lambda x: x.sum() + abs(x.shape[0] - 1), {0}),
    "a number that a condition makes": (lambda x: x.sum() + (x.shape[0] if x.shape[0] > 1 else 7), {0, 1}),
    "numel": (lambda x: x + 1 if x.numel() > 3 else x * 2, {0, 1}),
    "in": (lambda x: x + 1 if x.shape[0] in (0, 1) else x * 2, {0, 1}),
    "1 in shape": (lambda x: x + 1 if 1 in x.shape else x * 2, {1}),
    "count": (lambda x: x * x.shape.count(1), {1}),
    "shapes": (lambda x: x + 1 if x.shape == torch.Size([1, 3]) else x * 2, {1}),
    "size()": (lambda x: x + 1 if x.size(0) > 1 else x * 2, {0, 1}),
    "any": (lambda x: x + 1 if any(size == 1 for size in x.shape) else x * 2, {1}),
    "sorted": (lambda x: x.sum() + sorted([x.shape[0], 1])[0], {0}),
    "match": (matched, {0, 1}),
    "prod": (lambda x: x + 1 if math.prod(x.shape) > 3 else x * 2, {0, 1}),
    "n // 2": (lambda x: x + 1 if x.shape[0] // 2 else x * 2, {0, 1}),
    "n % 3 of two or more": (lambda x: x + 1 if (x.shape[0] + 1) // 2 > 0 else x.sum(), {0}),
    "a difference": (lambda x: x + 1 if x.shape[0] - 1 > 0 else x * 2, {0, 1}),
    "and": (lambda x: x + 1 if (x.shape[0] > 1) & (x.shape[0] > 0) else x * 2, {0, 1}),
    "or": (lambda x: x + 1 if (x.shape[0] > 1) | (x.shape[0] == 1) else x.sum(), {0}),
    "sym_not": (lambda x: x + 1 if torch.sym_not(x.shape[0] == 1) else x * 2, {1}),
    "a stride": (lambda x: x + 1 if x.t().stride(0) == x.shape[0] else x * 2, {1}),
    "the next shape": (lambda x: x + 1 if torch.cat([x, x]).shape[0] > 2 else x * 2, {0, 1}),
    "guard_or_false": (lambda x: x + 1 if guard_or_false(x.shape[0] > 1) else x * 2, {0, 1}),
    "guard_or_true": (lambda x: x + 1 if guard_or_true(x.shape[0] == 1) else x * 2, {1}),
    "statically_known_true": (lambda x: x + 1 if statically_known_true(x.shape[0] > 1) else x * 2, {0, 1}),
    "a helper function": (lambda x: x + 1 if is_long(x) else x * 2, {0, 1}),
    "torch._check": (checked, {0, 1}),
    "a check": (asserted, {0}),
    "a loop": (twice, {1}),
    "a branch of torch.cond": (in_a_branch, {0, 1}),
    "a number in a branch of torch.cond": (
        lambda x: torch.cond(x.sum() >= 0, lambda x: x.sum(0) + (3 if x.shape[0] - 1 else 4), lambda x: x.sum(0), (x,)),
        {1},
    ),
    "the larger one in a branch of torch.cond": (
        lambda x: torch.cond(x.sum() >= 0, lambda x: x * max(x.shape[0], 4), lambda x: x * min(x.shape[0], 4), (x,)),
        set(),
    ),
    "torch.cond": (lambda x: torch.cond(x.sum() > 100, lambda x: x + 1, lambda x: x * 2, (x,)), set()),
    "an error that is caught": (catches, {0, 1}),
    "a size that depends on data too": (with_chosen_rows, {0, 1}),
    "numbers read from tensors": (lambda x: x * (x.sum() if x.shape[0] > 1 else x.mean()).item(), {0, 1}),
    "zeros of two signs": (lambda x: x / torch.tensor(0.0 if x.shape[0] > 1 else -0.0), {0, 1}),
    "a write through reshape": (write_to(lambda y: y.t().reshape(-1)), {0, 1}),
    "a write through flatten": (write_to(lambda y: y.t().flatten()), {0, 1}),
    "a write through contiguous": (write_to(lambda y: y.t().contiguous()), {0, 1}),
    "a write behind a copy": (write_behind, {0, 1}),
    "a write through a view": (write_to(lambda y: y.reshape(-1)), set()),
    "code without a file": (no_file(), {0, 1}),
    "is_contiguous": (lambda x: x + 1 if x.t().is_contiguous() else x * 2, {0, 1}),
    "a copy if need be": (lambda x: (y if (y := x.t()).is_contiguous() else y.contiguous()) + 1, set()),
    "halves": (lambda x: x + 1 if x.shape[0] / 2 > 0.5 else x * 2, {0, 1}),
    "inside of torch.vmap": (lambda x: torch.vmap(lambda row: row + 1 if x.shape[0] > 1 else row * 2)(x), {0, 1}),
    "a write": (lambda x: y.add_(1) if (y := x * 2).shape[0] > 1 else y.add_(1), set()),  # noqa: RUF034
    "a copy that is written to": (lambda x: write_to_copy(x * 2, bool(x.shape[0] > 1)), {0, 1}),
    "a copy of what is written to": (lambda x: write_to_copied(x * 2, bool(x.shape[0] > 1)), {0, 1}),
    "a value": (lambda x: torch.where(torch.tensor(x.shape[0] > 1), x + 1, x * 2), set()),
    "a squeeze that nothing reads": (lambda x: x + 1 if x.squeeze(0).dim() == 2 else x * 2, {1}),
    "nothing": (lambda x: x * x.shape[0], set()),
    "both ways": (lambda x: x * 2 if x.shape[0] > 1 else x * 2, set()),  # noqa: RUF034
    "both ways, of one size": (lambda x: x * x.shape[0] if x.shape[0] > 1 else x * (1 if x.shape[0] else 0), set()),
    "what is no copy": (lambda x: x.t().contiguous() + 1 if x.shape[0] > 1 else x.t() + 1, set()),
    "an expansion": (lambda x: x[:, None].expand(-1, x.shape[0], -1) + 1 if x.shape[0] != 1 else x[:, None] + 1, set()),
    "a causal mask": (
        lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=bool(x.shape[0] > 1)),
        set(),
    ),
    "a causal mask of more keys": (
        lambda x: nn.functional.scaled_dot_product_attention(x[None], (y := torch.cat([x, x])[None]), y, is_causal=bool(x.shape[0] > 1)),
        {1},
    ),
}


def compiled(model: Any, smallest: int, **options: Any) -> torchkiln.CompiledModule:
    shapes = ({0: Dim("n", min=smallest, max=9)},)
    return torchkiln.compile(model, (torch.ones(5, 3),), dynamic_shapes=shapes, engine="reference", min_block_size=1, **options)


@pytest.mark.parametrize("smallest", [0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_a_small_size_is_right_or_outside(form: str, smallest: int) -> None:
    function, refused = FORMS[form]
    program = compiled(Model(function), smallest)
    for rows in range(smallest, 10):
        x = torch.rand(rows, 3)
        if rows in refused:
            with pytest.raises(torchkiln.ShapeOutOfProfile):
                program(x)
        else:
            torch.testing.assert_close(program(x), function(x), check_dtype=False)


@pytest.mark.parametrize(("before", "form"), [("reshape", "flatten"), ("flatten", "reshape")])
def test_what_was_exported_before_makes_no_copy_of_a_view(before: str, form: str) -> None:
    FakeTensorMode.cache_clear()
    torch.export.export(Model(FORMS[f"a write through {before}"][0]), (torch.ones(0, 3),), strict=False)
    program = compiled(Model(FORMS[f"a write through {form}"][0]), 0)
    assert not program.accepts((torch.ones(0, 3),), {})


def asks_of_both_sizes(x: T) -> T:
    """With the same graph on both sides of the first question."""
    twice = x * 2 if x.shape[0] > 1 else x * 2  # noqa: RUF034
    return twice + 1 if x.shape[1] > 2 else twice * 3


def test_sizes_that_an_export_for_a_small_one_names_otherwise() -> None:
    shapes = ({0: Dim("batch", min=1, max=4), 1: 2 * Dim("half", min=1, max=5)},)
    program = torchkiln.compile(asks_of_both_sizes, (torch.rand(3, 8),), dynamic_shapes=shapes, engine="reference", min_block_size=1)
    for rows in (1, 2, 4):
        for half in (1, 2, 5):
            x = torch.rand(rows, 2 * half)
            assert program.accepts((x,), {}) == (half != 1)
            if half != 1:
                torch.testing.assert_close(program(x), asks_of_both_sizes(x))


@pytest.mark.parametrize("form", ["n > 1", "n == 1", "not n", "both ways"])
@pytest.mark.parametrize("wrapped", ["a plain function", "modules in modules"])
def test_whoever_asks(form: str, wrapped: str) -> None:
    function, refused = FORMS[form]
    program = compiled(function if wrapped == "a plain function" else Outer(function), 0)
    for rows in range(4):
        x = torch.rand(rows, 3)
        assert program.accepts((x,), {}) == (rows not in refused)
        if rows not in refused:
            torch.testing.assert_close(program(x), function(x))


TWO: dict[str, tuple[Callable[[T, T], Any], Callable[[int, int], bool]]] = {
    "a sum": (lambda x, y: x.sum() + y.sum() if x.shape[0] + y.shape[0] > 3 else x.sum() * y.sum(), lambda n, m: n + m <= 3),
    "a product": (lambda x, y: x.sum() + y.sum() if x.shape[0] * y.shape[0] > 3 else x.sum() * y.sum(), lambda n, m: n * m <= 3),
    "both": (lambda x, y: x.sum() + y.sum() if x.shape[0] > 1 and y.shape[0] > 1 else x.sum() * y.sum(), lambda n, m: n < 2 or m < 2),
    "either": (lambda x, y: x.sum() + y.sum() if x.shape[0] > 1 or y.shape[0] > 1 else x.sum() * y.sum(), lambda n, m: n < 2 and m < 2),
    "one after the other": (
        lambda x, y: x.sum() + y.sum() if x.shape[0] > 1 else (x.sum() + y.sum() if y.shape[0] > 1 else x.sum() * y.sum()),
        lambda n, m: n < 2 and m < 2,
    ),
    "a quotient": (
        lambda x, y: x.sum() + y.shape[0] // x.shape[0] if x.shape[0] > 1 else x.sum() * y.sum(),
        lambda n, m: n < 2,
    ),
    "a remainder": (
        lambda x, y: x.sum() + (1 if y.shape[0] % (x.shape[0] + 1) >= 0 else 2) if x.shape[0] else y.sum(),
        lambda n, m: n == 0,
    ),
    "one of them": (lambda x, y: x.sum() + y.sum() if y.shape[0] != 1 else x.sum() * y.sum(), lambda n, m: m == 1),
    "neither": (lambda x, y: x.sum() + y.sum() if x.shape[0] > y.shape[0] - y.shape[0] else x.sum() + y.sum(), lambda n, m: False),  # noqa: RUF034
}


@pytest.mark.parametrize("form", TWO)
def test_two_sizes_are_right_or_outside(form: str) -> None:
    function, is_refused = TWO[form]
    shapes = ({0: Dim("n", min=0, max=6)}, {0: Dim("m", min=0, max=6)})
    program = torchkiln.compile(function, (torch.rand(5, 3), torch.rand(4, 3)), dynamic_shapes=shapes, engine="reference", min_block_size=1)
    for rows in range(7):
        for columns in range(7):
            args = torch.rand(rows, 3), torch.rand(columns, 3)
            assert program.accepts(args, {}) == (not is_refused(rows, columns)), (rows, columns)
            if not is_refused(rows, columns):
                torch.testing.assert_close(program(*args), function(*args))


@pytest.mark.parametrize(
    ("module", "example", "refused"),
    [
        (nn.InstanceNorm1d(3), torch.rand(2, 3, 5), {1}),  # PyTorch refuses one value in a channel
        (nn.Upsample(scale_factor=2.0), torch.rand(2, 3, 5), set()),
        (nn.MultiheadAttention(4, 2, batch_first=True).eval(), torch.rand(2, 5, 4), set()),
        (nn.BatchNorm1d(3).eval(), torch.rand(2, 3, 5), set()),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), torch.rand(2, 5, 4), set()),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, nn.Module) else "",
)
def test_what_modules_of_torch_ask(module: nn.Module, example: T, refused: set[int]) -> None:
    length = example.shape.index(5)

    class Of(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: T) -> T:
            return self.module(x, x, x)[0] if isinstance(module, nn.MultiheadAttention) else self.module(x)

    shapes = ({0: Dim("batch", min=1, max=8), length: Dim("length", min=1, max=8)},)
    program = torchkiln.compile(Of(), (example,), dynamic_shapes=shapes, engine="reference", min_block_size=1)
    for batch in (1, 3):
        for size in (1, 4):
            x = example[:1].repeat(batch, 1, 1).narrow(length, 0, size)
            assert program.accepts((x,), {}) == (size not in refused)
            if size not in refused:
                with torch.no_grad():
                    torch.testing.assert_close(program(x), Of()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", ["torch", "rebuild"])
@pytest.mark.parametrize("form", ["n > 1", "n == 1", "max(n, 1)", "match", "a loop"])
def test_sizes_outside_run_elsewhere(form: str, way: str) -> None:
    function, _ = FORMS[form]
    program = compiled(Model(function), 0, out_of_profile=way)
    for rows in (1, 0, 2, 5, 1, 0):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(program(x), function(x))


def test_one_of_two_small_sizes_is_rebuilt_for() -> None:
    def function(x: T) -> T:
        return x + 1 if x.shape[0] > 1 and x.shape[1] > 1 else x * 2

    shapes = ({0: Dim("n", min=1, max=6), 1: Dim("m", min=1, max=6)},)
    program = torchkiln.compile(
        function, (torch.rand(5, 4),), dynamic_shapes=shapes, engine="reference", min_block_size=1, out_of_profile="rebuild"
    )
    for rows, columns in ((1, 4), (1, 1), (4, 1), (1, 3), (3, 3)):
        x = torch.rand(rows, columns)
        assert torch.equal(program(x), function(x))


def test_the_message_says_who_asks_and_what_to_do(tmp_path: Path) -> None:
    program = compiled(Model(is_long_or_not), 1)
    torchkiln.save(program, tmp_path / "program.kiln")
    line = is_long.__code__.co_firstlineno + 1
    asks = (
        rf"of which (\w+) != 1, since the model asks `\1 > 1` at .*test_small_branches.py:{line}, .* got \1 = 1 \(argument x dimension 0\)"
    )
    for run, fix in ((program, r"out_of_profile='torch' or 'rebuild'"), (torchkiln.load(tmp_path / "program.kiln"), "save again")):
        for _ in range(2):  # what was refused once is refused again
            with pytest.raises(torchkiln.ShapeOutOfProfile, match=rf"{asks}\s+fix: declare min=2 .*{fix}"):
                run(torch.rand(1, 3))
        x = torch.rand(2, 3)
        assert torch.equal(run(x), x + 1)


def is_long_or_not(x: T) -> T:
    return x + 1 if is_long(x) else x * 2


def test_derived_sizes_are_asked_in_their_symbol() -> None:
    def function(x: T) -> T:
        return x + 1 if x.shape[0] > 2 else x * 2

    program = torchkiln.compile(
        function, (torch.rand(6, 3),), dynamic_shapes=({0: 2 * Dim("half", min=1, max=9)},), engine="reference", min_block_size=1
    )
    assert not program.accepts((torch.rand(2, 3),), {})
    x = torch.rand(4, 3)
    assert torch.equal(program(x), function(x))


def test_the_model_is_as_after_one_export() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.seen: list[str] = []
            self.by_name = {"a": 1}
            self.register_buffer("total", torch.zeros(3))
            self.register_buffer("last", torch.zeros(3), persistent=False)

        def forward(self, x: T) -> T:
            self.calls += 1
            self.seen.append("x")
            self.by_name[str(self.calls)] = self.calls
            self.total += x.sum(0)
            self.last = x.sum(0) * (1 + 0 * random.randrange(2))
            return x * 2 if x.shape[0] > 1 else x * 2  # noqa: RUF034

    model = Stateful()
    buffers = dict(model.named_buffers())
    random.seed(0)
    expected = random.getstate()
    random.randrange(2)
    after_one = random.getstate()
    random.setstate(expected)
    numbers = torch.random.get_rng_state()
    program = compiled(model, 1)
    assert (model.calls, model.seen, model.by_name) == (0, [], {"a": 1})
    assert random.getstate() == after_one
    assert torch.equal(torch.random.get_rng_state(), numbers)
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
        assert torch.equal(buffer, torch.zeros(3))
    x = torch.rand(1, 3)
    assert torch.equal(program(x), x * 2)
    torch.testing.assert_close(model.total, x[0])


def test_what_a_forward_writes_is_taken_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.seen, model.names, model.kinds, model.count = [1], {"a": 1}, {"b"}, 0
    lists = model.seen, model.names, model.kinds
    weight, mean = model[0].weight, model[1].running_mean
    with untouched(model):
        model.seen.append(2)
        model.names["a"] = 2
        model.kinds.add("c")
        model.count, model.other = 1, 1
        model[1].running_mean = torch.ones(2)
        model[0].weight = nn.Parameter(torch.ones(2, 2))
        model.extra = nn.Identity()
        torch.rand(1)
    assert (model.seen, model.names, model.kinds, model.count) == ([1], {"a": 1}, {"b"}, 0)
    assert all(one is other for one, other in zip(lists, (model.seen, model.names, model.kinds), strict=True))
    assert model[0].weight is weight
    assert model[1].running_mean is mean
    assert not hasattr(model, "other")
    assert not hasattr(model, "extra")


def test_many_sizes_of_which_much_is_asked_cost_few_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    export, count = torch.export.export, 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return export(*args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counted)
    dims = {index: Dim(f"n{index}", min=0, max=9) for index in range(4)}
    asks = torchkiln.compile(
        lambda x: x + 1 if all(size > 1 for size in x.shape) else x * 2,
        (torch.rand(2, 3, 4, 5),),
        dynamic_shapes=(dims,),
        engine="reference",
    )
    assert count <= 9
    assert not asks.accepts((torch.rand(2, 1, 4, 5),), {})
    count = 0
    torchkiln.compile(lambda x: x.flatten(1) + 1, (torch.rand(2, 3, 4, 5),), dynamic_shapes=(dims,), engine="reference")
    assert count == 1


def test_a_size_that_no_branch_allows_is_an_error_as_before() -> None:
    with pytest.raises(ExportError):
        compiled(lambda x: [x[index] for index in range(x.shape[0])], 1)


def test_a_graph_as_a_model() -> None:
    model = graph()
    program = compiled(model, 0)
    for rows in range(5):
        x = torch.rand(rows, 3)
        assert program.accepts((x,), {}) == (rows > 1)
        if rows > 1:
            torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("least", [1.5, 1.0])
def test_a_question_about_fractions_is_refused_at_once(least: float) -> None:
    with pytest.raises(ExportError, match="which cannot be checked in a call"):
        torchkiln.compile(
            lambda x: x + 1 if x.shape[0] * 0.3 >= least else x * 2,
            (torch.rand(7, 3),),
            dynamic_shapes=({0: Dim.AUTO},),
            engine="reference",
            min_block_size=1,
        )
