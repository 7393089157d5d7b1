"""The public pass registry: decorators and functions over one process default, which is a ``Pipeline`` value.

A compilation takes the default when it starts, or the pipeline it is given; a later change reaches later compilations only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from torchkiln_lowering.passes.standard import standard_pipeline
from torchkiln_lowering.pipeline import Pass, PassFunction, Pipeline
from torchkiln_lowering.runner import copied, run_passes


class _Default:
    """Holds the process default. The lock makes read-and-replace atomic; a value that was read never changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipeline: Pipeline | None = None

    def get(self) -> Pipeline:
        with self._lock:
            return self._now()

    def update(self, change: Callable[[Pipeline], Pipeline]) -> None:
        with self._lock:
            self._pipeline = change(self._now())

    def _now(self) -> Pipeline:
        return standard_pipeline() if self._pipeline is None else self._pipeline


_default = _Default()


def default_pipeline() -> Pipeline:
    """The pipeline that compilations take when they are given none."""
    return _default.get()


@overload
def aten_lowering_pass(function: PassFunction) -> PassFunction: ...
@overload
def aten_lowering_pass(*, index: int | None = None) -> Callable[[PassFunction], PassFunction]: ...
def aten_lowering_pass(function: PassFunction | None = None, *, index: int | None = None) -> Any:
    """Adds a function ``(gm, sample_inputs) -> gm`` to the default pipeline, last or at ``index``.

    Raises:
        TypeError: Something else than a function is given.
        ValueError: The default already has a pass of that name.
        IndexError: No such place.
    """
    if function is not None and not callable(function):
        raise TypeError(f"aten_lowering_pass: expected a function, got {function!r}; write @aten_lowering_pass(index=...) for a place")

    def register(given: PassFunction) -> PassFunction:
        _default.update(lambda pipeline: pipeline.with_pass(Pass.from_function(given), index))
        return given

    return register if function is None else register(function)


def remove_lowering_pass(name: str | None = None, *, index: int | None = None) -> None:
    """Removes a pass from the default pipeline, by name or by index.

    Raises:
        TypeError: Neither or both given.
        LookupError: There is no such pass.
    """
    if (name is None) == (index is None):
        raise TypeError("remove_lowering_pass: expected a name or an index, one of them")
    which = name if index is None else index
    _default.update(lambda pipeline: pipeline.without(which))  # type: ignore[arg-type]


def dump_lowering_passes(pipeline: Pipeline | None = None) -> str:
    """The passes of a pipeline (the default, if none is given), one a line, with their indices."""
    return str(default_pipeline() if pipeline is None else pipeline)


def apply_lowering_passes(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any], pipeline: Pipeline | None = None) -> torch.fx.GraphModule:
    """Runs a pipeline (the default, if none is given) on a copy of a flat functional ATen graph.

    Args:
        gm: A graph that returns a flat tuple.
        sample_inputs: One value per placeholder, real or fake; metadata that the graph lacks is computed from them.
        pipeline: The passes.

    Raises:
        LoweringError: A pass failed.
        ValueError: Not one sample per placeholder.
    """
    module = copied(gm)
    if any("val" not in node.meta for node in module.graph.nodes if node.op in ("placeholder", "call_function")):
        _propagate(module, sample_inputs)
    run_passes(module, default_pipeline() if pipeline is None else pipeline)
    module.recompile()
    return module


def _propagate(module: torch.fx.GraphModule, samples: Sequence[Any]) -> None:
    holes = module.graph.find_nodes(op="placeholder")
    if len(holes) != len(samples):
        raise ValueError(f"sample_inputs: expected {len(holes)}, one per placeholder, got {len(samples)}")
    mode = next((item.fake_mode for item in samples if isinstance(item, FakeTensor)), None) or FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(item) if isinstance(item, torch.Tensor) and not isinstance(item, FakeTensor) else item for item in samples]

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            value = super().run_node(n)
            if n.op != "output":
                n.meta["val"] = value
            return value

    with mode:
        Recorder(module).run(*fakes)
