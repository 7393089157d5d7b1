"""``Pipeline``: the passes of a compilation, in order. A value: two compilations never see each other's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

Transform = Callable[[torch.fx.GraphModule], bool]
"""Edits a graph in place and says whether it changed it."""

PassFunction = Callable[[torch.fx.GraphModule, Sequence[Any]], torch.fx.GraphModule]
"""A user's pass: takes the graph and fake inputs, returns the graph to go on with."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewrite of a program's graph.

    Attributes:
        name: Unique in a pipeline.
        run: The rewrite.
        removes: Operators that no longer occur once it ran; the runner checks it.
        after: Names of passes that must have run before.
    """

    name: str
    run: Transform
    removes: frozenset[Callable[..., Any]] = frozenset()
    after: tuple[str, ...] = ()

    @staticmethod
    def from_function(function: PassFunction, *, name: str | None = None, after: tuple[str, ...] = ()) -> Pass:
        """A pass from a function ``(gm, sample_inputs) -> gm``; ``sample_inputs`` are the fake tensors of the placeholders."""

        @functools.wraps(function)
        def run(module: torch.fx.GraphModule) -> bool:
            # A pass may call the module.
            module.recompile()
            samples = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
            result = function(module, samples)
            if not isinstance(result, torch.fx.GraphModule):
                raise TypeError(f"expected the pass to return a GraphModule, got {type(result).__name__}")
            if result is not module:
                _adopt(module, result)
            return True

        return Pass(name or str(getattr(function, "__name__", repr(function))), run, after=after)

    @property
    def purpose(self) -> str:
        """What the pass is for: the first line of its documentation."""
        lines = (inspect.getdoc(inspect.unwrap(self.run)) or "").strip().splitlines()
        return lines[0] if lines else ""

    @property
    def where(self) -> str:
        """Where the pass is defined, as ``module.function (file:line)``."""
        function = inspect.unwrap(self.run)
        code = getattr(function, "__code__", None)
        name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
        return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Passes in the order in which they run.

    Raises:
        ValueError: Two passes of one name, or a pass that stands before one it must come after.
    """

    passes: tuple[Pass, ...] = ()

    def __post_init__(self) -> None:
        seen: list[str] = []
        for item in self.passes:
            if item.name in seen:
                raise ValueError(f"pass {item.name}: the pipeline already has a pass of that name; remove it first")
            missing = [name for name in item.after if name not in seen]
            if missing:
                raise ValueError(f"pass {item.name}: expected {', '.join(missing)} before it, got {', '.join(seen) or 'nothing'}")
            seen.append(item.name)

    def with_pass(self, item: Pass, index: int | None = None) -> Pipeline:
        """This pipeline with one more pass, at ``index`` or last.

        Raises:
            IndexError: No such place.
        """
        if index is None:
            index = len(self.passes)
        if not -len(self.passes) <= index <= len(self.passes):
            raise IndexError(f"lowering pass index: expected at most {len(self.passes)}, got {index}")
        return Pipeline((*self.passes[:index], item, *self.passes[index:]))

    def without(self, which: int | str) -> Pipeline:
        """This pipeline without the pass of that index or name.

        Raises:
            LookupError: There is none (``IndexError`` or ``KeyError``).
            ValueError: Another pass must come after it.
        """
        return Pipeline(tuple(item for item in self.passes if item is not self[which]))

    def __getitem__(self, which: int | str) -> Pass:
        if isinstance(which, int):
            if not -len(self.passes) <= which < len(self.passes):
                raise IndexError(f"lowering pass index: expected less than {len(self.passes)}, got {which}")
            return self.passes[which]
        for item in self.passes:
            if item.name == which:
                return item
        raise KeyError(f"no lowering pass {which!r}; there are: {', '.join(item.name for item in self.passes) or 'none'}")

    def __str__(self) -> str:
        return "\n".join(_line(index, item) for index, item in enumerate(self.passes))


def _line(index: int, item: Pass) -> str:
    after = f" (after {', '.join(item.after)})" if item.after else ""
    purpose = f": {item.purpose}" if item.purpose else ""
    return f"{index}: {item.name}{after}{purpose} [{item.where}]"


def _adopt(module: torch.fx.GraphModule, result: torch.fx.GraphModule) -> None:
    """Makes ``module`` the graph of ``result``, with the attributes that the graph reads."""
    for node in result.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            root = str(node.target).split(".")[0]
            value = getattr(result, root)
            if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter) and root not in module._buffers:
                module.register_buffer(root, value)
            setattr(module, root, value)
    graph = torch.fx.Graph(module)
    graph.output(graph.graph_copy(result.graph, {}))
    graph.output_node().meta = dict(result.graph.output_node().meta)
    module.graph = graph
