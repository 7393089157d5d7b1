"""``torchkiln.explain``: what compiling a model would do, without building anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from torchkiln.aot import capture_model
from torchkiln.inputs import Input
from torchkiln.report import Report
from torchkiln.stages import Compiler
from torchkiln_core import Options


def explain(
    model: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    inputs: Sequence[Input | torch.Tensor] | None = None,
    **options: Any,
) -> Report:
    """Says which segments a model would be divided into, and why calls would stay in PyTorch.

    The model is captured, lowered, divided and converted into networks of TensorRT layers; no plan is built, so neither a GPU nor a
    TensorRT library is needed.

    Args:
        model: As for ``torchkiln.compile``.
        args: Example positional arguments.
        kwargs: Example keyword arguments.
        dynamic_shapes: As in ``torch.export.export``.
        inputs: Instead of ``args`` and ``dynamic_shapes``: a description of each tensor argument.
        **options: As for ``torchkiln.compile``.

    Raises:
        CompileError: A stage refused; the subclass says which.
        ValueError: An unknown option, or a value outside its range.
        TypeError: Arguments of the wrong type.
    """
    compiler = Compiler(Options.from_keywords(options))
    captured, _ = capture_model(compiler, model, (args, kwargs, dynamic_shapes, inputs))
    return compiler.explain(compiler.lower(captured.program))
