"""TorchScript to an exported program: by torch's converter, or where that one fails by running the script while it is traced."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram

from torchkiln_core import ExportError

Script: TypeAlias = "torch.jit.ScriptModule | torch.jit.ScriptFunction[Any, Any]"
_WRITES = re.compile(r'prim::SetAttr\[name="([^"]*)"\]')


def export_script(script: Script, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExportedProgram:
    """Exports a script for the sizes of its example arguments.

    The converter refuses branches that raise, among others. Tracing follows the branch that the examples take, as ``torch.export`` does
    with control flow in Python, and its weights are constants. A script that writes its own attributes is no function of its inputs and is
    refused.

    Raises:
        ExportError: Neither way works; both reasons are given.
    """
    try:
        from torch._export.converter import TS2EPConverter

        return TS2EPConverter(script, args, dict(kwargs)).convert()
    except Exception as error:
        reason = _root(error)
        written = sorted(set(_WRITES.findall(str(script.inlined_graph))))
        if written:
            raise ExportError(
                f"TorchScript {_name_of(script)} cannot be converted: it writes its attributes {', '.join(written)}; torch says: {reason}",
                fix="compile the submodule that computes, and keep the state outside: give it as an argument and take it as a result",
            ) from error
        try:
            return _traced(script, args, kwargs)
        except Exception as second:
            raise ExportError(
                f"TorchScript {_name_of(script)} cannot be converted: {reason}; nor traced: {type(second).__name__}: {second}",
                fix="give the nn.Module or the function that it was made from",
            ) from second


def _traced(script: Script, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExportedProgram:
    with torch.no_grad():
        return torch.export.export(_Run(script), args, dict(kwargs), strict=False)


class _Run(torch.nn.Module):
    """Holds a script out of sight of ``torch.export``, which would look for parameters in it."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        # A script that was made in this process would run the Python that it was made from; a loaded one has none.
        buffer = io.BytesIO()
        torch.jit.save(script, buffer)
        buffer.seek(0)
        loaded = torch.jit.load(buffer)  # type: ignore[no-untyped-call]
        if isinstance(loaded, torch.nn.Module):
            # A copy of ours, whose weights are constants.
            for parameter in loaded.parameters():
                parameter.requires_grad_(False)
        self._script = [loaded]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._script[0](*args, **kwargs)


def _root(error: BaseException) -> str:
    """The first error of a chain: the converter wraps it once per nested block."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return f"{type(error).__name__}: {error}"


def _name_of(script: Script) -> str:
    return str(getattr(script, "original_name", None) or getattr(script, "name", None) or type(script).__name__)
