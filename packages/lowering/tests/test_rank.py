"""More than eight dimensions: merged to eight or fewer where that is possible, left as they are elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_programs import aten, capture, guard_state, run, targets
from torch.export import Dim

from torchkiln_core.options import LoweringOptions
from torchkiln_lowering import AtenLowering
from torchkiln_lowering.passes.lower_rank import MAX_RANK

X = torch.arange(2 * 4 * 6 * 4.0).view(2, 4, 6, 4)
NINE = (2, 2, 2, 3, 2, 2, 2, 1, 1)
SPLIT = (1, 2, 2, 2, 3, 2, 2, 2, 1)


class Everything:
    targets: frozenset[Any] = frozenset()

    def reject(self, call: Any) -> None:
        return None


def lowered(function: Any, *inputs: torch.Tensor, dynamic: Any = None) -> Any:
    program = capture(function, inputs, dynamic)
    guards = guard_state(program)
    # The debug mode compares values and what results share memory with, around every pass.
    result = AtenLowering(LoweringOptions(lowering_debug=True)).lower(program, Everything())
    assert guard_state(program) == guards
    return result


def highest(program: Any) -> int:
    values = [node.meta.get("val") for node in program.module.graph.nodes]
    return max(value.dim() for value in values if isinstance(value, torch.Tensor))


def windows(x: torch.Tensor) -> torch.Tensor:
    """Windows of a video, as its transformers part it: [N, D, H, W, C] in 9 dimensions with two groups of channels."""
    y = x.view(2, 2, 2, 3, 2, 2, 2, 1, 1).permute(0, 1, 3, 5, 7, 2, 4, 6, 8).contiguous()
    return (y.view(2, 2, 3, 2, -1) * 2).reshape(2, -1)


def named(x: torch.Tensor) -> torch.Tensor:
    y = x.view(NINE).transpose(1, 3).transpose(0, 2)
    return (y + 1).flatten()


LOWERED: dict[str, Any] = {
    "windows": windows,
    "transposes": named,
    "merged runs": lambda x: x.view(SPLIT).permute(0, 4, 5, 1, 2, 3, 6, 7, 8).reshape(6, -1),
    "pointwise": lambda x: torch.where(x.view(SPLIT) > 7, x.view(SPLIT).exp() / 2, x.view(SPLIT) * 3).view(8, -1),
    "broadcast": lambda x: (x.view(SPLIT) * x.view(SPLIT)[:, :1, :, :1] + torch.arange(2.0).view(2, 1)).sum((1, 3, 4)).flatten(),
    "reductions": lambda x: (x.view(SPLIT).mean((1, 2, 4)) + x.view(SPLIT).amax((1, 2, 4), keepdim=True).view(1, 2, 2, 2, 2, 1)).sum(0),
    "everything summed": lambda x: x.view(SPLIT).sum(()),
    "along one dimension": lambda x: x.view(SPLIT).softmax(4).cumsum(-2)[:, :, 1].reshape(-1),
    "pieces": lambda x: torch.cat([x.view(SPLIT)[..., :1, :], x.view(SPLIT).index_select(-2, torch.tensor([1]))], 5).flatten(2).clone(),
    "expanded": lambda x: x.view(SPLIT)[:, :, :1].expand(1, 2, 5, 2, 3, 2, 2, 2, 1).reshape(-1),
    "squeezed": lambda x: (x.view(SPLIT).squeeze(0) * 2).unsqueeze(3).squeeze(3),
    "cast": lambda x: x.view(SPLIT).half().permute(8, 7, 6, 5, 4, 1, 2, 3, 0).flatten(),
    "promoted": lambda x: (x.view(SPLIT).half() * torch.tensor(0.1)).view(-1),
}


@pytest.mark.parametrize("form", LOWERED)
def test_lowered(form: str) -> None:
    program = lowered(LOWERED[form], X)
    assert highest(program) <= MAX_RANK, targets(program)
    (got,), want = run(program, X), LOWERED[form](X)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)


@settings(max_examples=5, deadline=None)
@given(st.permutations(range(10)), st.lists(st.sampled_from([1, 2]), min_size=10, max_size=10))
def test_any_permutation(order: list[int], shape: list[int]) -> None:
    x = torch.arange(float(torch.Size(shape).numel()))
    program = lowered(lambda x: x.view(shape).permute(order).reshape(-1) + 1, x)
    torch.testing.assert_close(run(program, x)[0], x.view(shape).permute(order).reshape(-1) + 1)


def test_dynamic_sizes() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        y = x.view(-1, 1, 2, 2, 3, 2, 2, 2, 1).permute(0, 1, 3, 4, 2, 5, 6, 7, 8)
        return (y * 2).sum((2, 3)).reshape(x.shape[0], -1)

    program = lowered(compute, X, dynamic=(({0: Dim("n", min=2, max=9)},),))
    assert highest(program) <= MAX_RANK
    x = torch.randn(7, 4, 6, 4)
    torch.testing.assert_close(run(program, x)[0], compute(x))


def test_two_dynamic_sizes_in_one_reshape_keep_their_form() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        y = x.view(x.shape[0], 2, 2, x.shape[2], 2, 2, 1, 1, 1)
        return y.permute(0, 3, 1, 4, 2, 5, 6, 7, 8).reshape(-1) * 2

    sizes = {0: Dim("n", min=2, max=9), 2: Dim("m", min=2, max=9)}
    program = lowered(compute, X, dynamic=((sizes,),))
    assert highest(program) == 9
    x = torch.randn(3, 4, 5, 4)
    torch.testing.assert_close(run(program, x)[0], compute(x))


@pytest.mark.parametrize("form", ["no neighbours", "an operator without a rule"])
def test_what_cannot_be_merged_keeps_its_form(form: str) -> None:
    forms: dict[str, Any] = {
        "no neighbours": lambda x: x.view(2, 2, 2, 2, 2, 2, 2, 2, 2).permute(1, 3, 5, 7, 0, 2, 4, 6, 8).flatten(),
        "an operator without a rule": lambda x: x.view(2, 2, 2, 2, 2, 2, 2, 2, 2).flip((0, 2)).flatten(),
    }
    x = torch.arange(512.0)
    program = lowered(forms[form], x)
    assert highest(program) == 9
    torch.testing.assert_close(run(program, x)[0], forms[form](x))


def test_inputs_and_results_of_high_rank() -> None:
    def compute(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y.sum((0, 1)).exp(), x[0, 0], y.permute(1, 0, 2, 3, 4, 5, 6, 7, 8)

    x = torch.randn(NINE)
    program = lowered(compute, x)
    got, want = run(program, x), compute(x)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride()
    # A view of an input stays one, as do two results that share memory.
    assert got[2].data_ptr() == x.data_ptr()
    assert got[0].data_ptr() == got[3].data_ptr()
    sums = program.module.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)
    assert [node.args[0].meta["val"].dim() <= MAX_RANK for node in sums] == [True]
