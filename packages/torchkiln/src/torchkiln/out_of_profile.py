"""What becomes of a call whose sizes are outside of what was compiled ahead of time."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from torchkiln_core import CompileError, ShapeOutOfProfile

_LOG = logging.getLogger("torchkiln")
_KEPT = 8
"""Programs that ``Rebuild`` keeps; the one unused for longest goes."""
_ROUTES = 4096
OR_ELSEWHERE = ", or compile with out_of_profile='torch' or 'rebuild'"
OR_NOWHERE = " and save again; a loaded program has no model to run or to compile, whatever out_of_profile it was compiled with"


def advised(error: ShapeOutOfProfile, more: str) -> ShapeOutOfProfile:
    """The error with more to its fix: what else can be done depends on who refuses the call."""
    return error if error.fix is None else ShapeOutOfProfile(error.message, fix=error.fix + more)


class Elsewhere(Protocol):
    """Runs calls that the compiled program refused for their sizes."""

    def __call__(self, error: ShapeOutOfProfile, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of the call. Raises ``error`` where it cannot run either."""
        ...

    def refresh(self) -> None:
        """Re-reads the weights of what it holds."""
        ...


class InPyTorch:
    """Runs such calls on the user's model, with the weights that it has now; says so once.

    Args:
        model: What the user compiled.
        prepare: Gives the model as it is to run in PyTorch.
    """

    def __init__(self, model: Callable[..., Any], prepare: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._model = prepare(model.module() if isinstance(model, torch.export.ExportedProgram) else model)
        self._constrained = isinstance(model, torch.export.ExportedProgram)
        self._warned = False

    def __call__(self, error: ShapeOutOfProfile, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs the model.

        Raises:
            ShapeOutOfProfile: The model is an exported program, and its own constraints refuse the sizes too.
        """
        if not self._warned:
            self._warned = True
            _LOG.warning("this size runs in PyTorch: %s", error)
        with torch.no_grad():
            if not self._constrained:
                return self._model(*args, **kwargs)
            try:
                return self._model(*args, **kwargs)
            except (RuntimeError, AssertionError) as refused:
                raise ShapeOutOfProfile(f"{error}\n  the exported program refuses it as well: {refused}") from refused

    def refresh(self) -> None:
        """Nothing is held: the model's weights are read by every call."""


class Rebuilt(Protocol):
    """A program compiled for a wider range."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ``ShapeOutOfProfile`` where its range is too narrow."""
        ...

    def accepts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the sizes of a call are in its range."""
        ...

    def refresh(self) -> None:
        """Re-reads its weights."""
        ...


class Rebuild:
    """Compiles once more for such calls, for a range that grows by doubling, and keeps what was compiled. Threads may share it.

    Args:
        compile_for: Compiles for the sizes of a call's arguments.
        key: Equal for calls of the same sizes.
    """

    def __init__(
        self,
        compile_for: Callable[[tuple[Any, ...], Mapping[str, Any]], Rebuilt],
        key: Callable[[tuple[Any, ...], Mapping[str, Any]], Hashable] | None = None,
    ) -> None:
        self._compile_for = compile_for
        self._key = key or _shapes
        self._kept: OrderedDict[int, Rebuilt] = OrderedDict()
        self._routes: dict[Hashable, int] = {}
        self._count = 0
        self._lock = threading.Lock()

    def __call__(self, error: ShapeOutOfProfile, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs the call on a program that takes it.

        Raises:
            ShapeOutOfProfile: Compiling once more failed, or what came of it does not take the call.
        """
        key = self._key(args, kwargs)
        with self._lock:
            program = self._kept.get(self._routes.get(key, -1)) or self._find(args, kwargs) or self._make(error, args, kwargs)
            number = next(number for number, kept in self._kept.items() if kept is program)
            self._kept.move_to_end(number)
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            self._routes[key] = number
        return program(*args, **kwargs)

    def refresh(self) -> None:
        """Re-reads the weights of every program kept."""
        for program in list(self._kept.values()):
            program.refresh()

    def _find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Rebuilt | None:
        return next((program for program in self._kept.values() if program.accepts(args, kwargs)), None)

    def _make(self, error: ShapeOutOfProfile, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Rebuilt:
        _LOG.info("compiling once more: %s", error)
        try:
            program = self._compile_for(args, kwargs)
        except (CompileError, ValueError) as failure:
            raise ShapeOutOfProfile(f"{error}\n  out_of_profile='rebuild' could not compile for it: {failure}") from failure
        if not program.accepts(args, kwargs):
            raise error
        self._count += 1
        self._kept[self._count] = program
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return program


def _shapes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """What decides where a call runs."""
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    return tuple(leaf.shape if isinstance(leaf, torch.Tensor) else (type(leaf), repr(leaf)) for leaf in leaves), tuple(kwargs)
