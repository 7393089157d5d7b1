"""Runs groups of rows by the reference and by TensorRT and compares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from torchkiln_core import BuildOptions, KilnError
from torchkiln_runtime.builder import TensorRTBuilder
from torchkiln_runtime.conformance.compare import Tolerance, difference
from torchkiln_runtime.conformance.groups import Group, write_group
from torchkiln_runtime.conformance.known import known_difference
from torchkiln_runtime.conformance.row import Row
from torchkiln_runtime.loader import TensorRTLoader
from torchkiln_runtime.reference import ReferenceEngine

Status = Literal["exact", "close", "differs", "refused"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row showed: results equal bit by bit, equal within the precision of the dtype, different, or a refusal by TensorRT."""

    layer: str
    case: str
    dtype: str
    shapes: Literal["static", "dynamic"]
    status: Status
    detail: str
    known: str | None

    @property
    def name(self) -> str:
        """Name of the row, such as ``Unary/EXP/float16``."""
        return f"{self.layer}/{self.case}/{self.dtype}"

    @property
    def is_green(self) -> bool:
        """Whether converters may use the layer so."""
        return self.status in ("exact", "close")


def check_group(group: Group, device: torch.device) -> Iterator[Outcome]:
    """Outcomes of the rows of a group, in order. A group that TensorRT refuses is divided until the refused row stands alone."""
    try:
        with _full_float32():
            outcomes = _run(group, device)
    except KilnError as error:
        if len(group.rows) == 1:
            yield _outcome(group, group.rows[0], "refused", str(error))
            return
        for half in group.halves():
            yield from check_group(half, device)
        return
    yield from outcomes


@contextlib.contextmanager
def _full_float32() -> Iterator[None]:
    """Keeps torch from TF32, which its convolutions use by default and engines do not."""
    convolutions, products = torch.backends.cudnn.conv, torch.backends.cuda.matmul  # type: ignore[attr-defined]
    before = convolutions.fp32_precision, products.fp32_precision
    convolutions.fp32_precision = products.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision, products.fp32_precision = before


def _run(group: Group, device: torch.device) -> list[Outcome]:
    network, counts = write_group(group)
    engine = TensorRTLoader(device).load(TensorRTBuilder(BuildOptions()).build(network))
    reference = ReferenceEngine(network)
    equal: list[bool] = [True] * len(group.rows)
    wrong: list[str] = [""] * len(group.rows)
    for sizes in group.sizes:
        inputs = [tensor.to(device) for tensor in group.values(sizes)]
        expected, got = iter(reference(*inputs)), iter(engine(*inputs))
        for index, (row, count) in enumerate(zip(group.rows, counts, strict=True)):
            tolerance = None if row.exact else Tolerance(row.relaxed, row.absolute)
            for _ in range(count):
                same, problem = difference(next(expected).cpu(), next(got).cpu(), tolerance)
                equal[index] &= same
                if problem and not wrong[index]:
                    wrong[index] = f"{problem} (sizes {', '.join(map(str, sizes.values()))})"
    return [
        _outcome(group, row, "differs" if problem else "exact" if same else "close", problem)
        for row, same, problem in zip(group.rows, equal, wrong, strict=True)
    ]


def _outcome(group: Group, row: Row, status: Status, detail: str) -> Outcome:
    dtype = str(row.dtype).removeprefix("torch.")
    return Outcome(row.layer, row.case, dtype, "dynamic" if group.dynamic else "static", status, detail, known_difference(row.name))
