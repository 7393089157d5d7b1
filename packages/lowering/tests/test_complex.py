"""Complex numbers as pairs of real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering_programs import aten, run, targets, whole

from torchkiln_lowering import AtenLowering
from torchkiln_lowering.passes.split_complex import split_complex
from torchkiln_testing import assert_keeps, assert_rewrites


class Everything:
    targets: frozenset[Any] = frozenset()

    def reject(self, call: Any) -> None:
        return None


def _number(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = _number(5, 4, 2)


def rotary(x: torch.Tensor) -> torch.Tensor:
    table = torch.polar(torch.ones(5, 4), torch.arange(20.0).view(5, 4))
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * table[None, :, None, :]
    return torch.view_as_real(turned).flatten(3)


FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "shapes": lambda z: torch.view_as_real(z.unsqueeze(-1).transpose(0, 1).permute(1, 0, 2).reshape(5, 4).expand(2, 5, 4)[..., 1:]) * 2,
    "parts": lambda z: ((z * z).real + (z * z).imag, (z * z).abs(), (z * z).angle()),
    "arithmetic": lambda z: torch.view_as_real((z + z[:1] - z[:, :1] * 2) / 3 * z.real.unsqueeze(0) * -z),
    "conjugate": lambda z: torch.view_as_real((z.conj() * z).resolve_conj()) + 0,
    "parts joined": lambda z: torch.view_as_real(torch.complex(z.real * 2, z.imag) * torch.cat([z[1:], z[:1]])),
    "selected": lambda z: torch.view_as_real(z[0] * z.index_select(0, torch.tensor([2, 1]))),
    "parts of other sizes": lambda z: [
        torch.view_as_real(torch.complex(*parts)) + 0
        for one, other in (
            (z.real, z.imag[0, 0]),
            (z.real, z.imag[0]),
            (z.real[:1], z.imag[:, :1]),
            (z.real[0, 0], z.imag[1, 1]),
            (z.real.unsqueeze(1), z.imag[0]),
        )
        for parts in ((one * 2, other), (other, one * 2))
    ],
    "polar of other sizes": lambda z: [
        torch.view_as_real(torch.polar(*parts)) + 0 for parts in ((z.real[0].abs(), z.imag), (z.real.abs(), z.imag[0, 0]))
    ],
    "operands of other sizes": lambda z: [
        torch.view_as_real(operator(one, other)) + 0
        for one, other in ((z, z[0, 0]), (z[0], z), (z[:1], z[:, :1]), (z[0, 0], z[1, 1]), (z[0, 0], z.unsqueeze(1)))
        for operator in (torch.add, torch.sub, torch.mul)
    ],
    "real operands of other sizes": lambda z: [
        torch.view_as_real(operator(one, other)) + 0
        for one, other in ((z, z.real[0, 0]), (z[0], z.real), (z[:1], z.real[:, :1]), (z[0, 0], z.real))
        for operator in (torch.mul, torch.div)
    ],
    "numbers in double precision": lambda z: [
        torch.view_as_real(result) + 0
        for one in (z, z[0, 0])
        for result in (
            one * z.real[0, 0].double(),
            one / z.real[0, 0].double(),
            one + torch.complex(z.real[0, 0].double(), z.imag[0, 0].double()),
        )
    ],
    "operands in double precision": lambda z: [
        torch.view_as_real(torch.complex(z.real[0, 0].double(), z.imag[0, 0].double()) * factor) + 0 for factor in (z.real, z.imag.double())
    ],
}


def _is_complex(program: Any) -> bool:
    return any(isinstance(value := node.meta.get("val"), torch.Tensor) and value.is_complex() for node in program.module.graph.nodes)


def test_rotary_embedding_becomes_real() -> None:
    x = _number(2, 5, 3, 8)
    lowered = AtenLowering().lower(whole(rotary, (x,)), Everything())
    assert not _is_complex(lowered)
    torch.testing.assert_close(run(lowered, x)[0], rotary(x))


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    after = assert_rewrites(split_complex, lambda x: FORMS[form](torch.view_as_complex(x)), (X,))
    complex_calls = [node for node in after.graph.nodes if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)]
    assert not [node for node in complex_calls if node.meta["val"].is_complex()]


def test_values_without_dimensions() -> None:
    """Dimension 0 and -1 of a value without any are themselves, whose pairs have one."""

    def compute(x: torch.Tensor) -> Any:
        z = torch.view_as_complex(x)
        results = z.squeeze(0), z.squeeze(-1), z.transpose(0, -1), z.index_select(0, torch.tensor([0])), z.unsqueeze(-1)
        return [torch.view_as_real(result * 2) for result in results]

    x = _number(2)
    lowered = AtenLowering().lower(whole(compute, (x,)), Everything())
    torch.testing.assert_close(list(run(lowered, x)), compute(x))


def test_parts_of_other_sizes_that_vary() -> None:
    def compute(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.view_as_real(torch.complex(x, y)) + 0, torch.view_as_real(torch.complex(y, x)) + 0

    auto = torch.export.Dim.DYNAMIC
    program = whole(compute, (_number(3, 1), _number(4, 1, 5)), (({0: auto}, {0: auto, 2: auto}),))
    lowered = AtenLowering().lower(program, Everything())
    assert not _is_complex(lowered)
    for sizes in ((3, 4, 5), (2, 6, 7)):
        args = _number(sizes[0], 1), _number(sizes[1], 1, sizes[2], seed=1)
        torch.testing.assert_close(run(lowered, *args), compute(*args))


def test_fourier_transforms_stay() -> None:
    x = _number(3, 8)
    lowered = AtenLowering().lower(whole(lambda x: torch.view_as_real(torch.fft.rfft(x) * 2) + 1, (x,)), Everything())
    assert [call for call in targets(lowered) if "fft" in str(call)]
    assert aten.mul.Tensor in targets(lowered)
    complex_values = [node for node in lowered.module.graph.nodes if isinstance(v := node.meta.get("val"), torch.Tensor) and v.is_complex()]
    assert len(complex_values) == 1
    torch.testing.assert_close(run(lowered, x)[0], torch.view_as_real(torch.fft.rfft(x) * 2) + 1)


def test_complex_results_and_views_of_inputs_stay() -> None:
    assert_keeps(split_complex, lambda x: torch.view_as_complex(x) * 2, (X,))
    assert_keeps(split_complex, lambda x: torch.view_as_real(torch.view_as_complex(x)), (X,))
    assert_keeps(split_complex, lambda x: x * 2, (_number(3),))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_numbers_of_half_dtypes_stay() -> None:
    program = whole(lambda x: torch.view_as_real(torch.complex(x, x)) * 2, (torch.ones(3, dtype=torch.float16),))
    assert aten.complex.default in targets(AtenLowering().lower(program, Everything()))


def test_pairs_that_nothing_reads_leave_no_calls() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).transpose(0, 1).squeeze(0)

    program = whole(compute, (_number(4, 6),))
    lowered = AtenLowering().lower(program, Everything())
    assert aten.view_as_real.default not in targets(lowered)
    torch.testing.assert_close(run(lowered, _number(4, 6))[0], compute(_number(4, 6)))


def test_what_cannot_be_traced_on_pairs_stays_complex() -> None:
    """The result of the product is known to be two wide by a guard only, which no pass may add to."""

    def turned(x: torch.Tensor) -> Any:
        z = torch.view_as_complex(x.reshape(x.shape[0], -1, 2))
        return torch.view_as_real(z * torch.polar(torch.ones(2), torch.arange(2.0)))

    auto = torch.export.Dim.DYNAMIC
    x = _number(3, 4)
    lowered = AtenLowering().lower(whole(turned, (x,), (({0: auto, 1: auto},),)), Everything())
    torch.testing.assert_close(run(lowered, x)[0], turned(x))
