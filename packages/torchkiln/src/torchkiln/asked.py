"""What a model's own Python asks of sizes while it is exported.

Tracing takes every symbolic size for at least 2. Where a model asks ``x.shape[0] > 1``, the answer is ``True`` without a guard: no trace
of the question is left in the program, though for 1 the answer is another.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental import sym_node, symbolic_shapes
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_TORCH = str(Path(torch.__file__).parent) + "/"
_HERE = str(Path(__file__).parent) + "/"
_PASSED_ON = (
    *(f"{_TORCH}__init__.py", f"{_TORCH}overrides.py", f"{_TORCH}_export/non_strict_utils.py"),
    *(f"{_TORCH}fx/experimental/sym_node.py", f"{_TORCH}fx/experimental/symbolic_shapes.py", __file__),
)
"""Files through which a question of Python passes on its way into torch; export puts ``min`` and ``max`` of its own in place."""
_INTERPRETED = tuple(_TORCH + name for name in ("_dynamo/variables/", "_dynamo/symbolic_convert.py", "fx/interpreter.py"))
"""Branches of torch.cond and its like, and models that are graphs, are interpreted: there torch asks what they do."""
_INTERNAL = tuple(
    _TORCH + name
    for name in (
        *("_decomp/", "_dispatch/", "_dynamo/", "_export/", "_functorch/", "_guards.py", "_higher_order_ops/", "_inductor/"),
        *("_library/", "_logging/", "_meta_registrations.py", "_ops.py", "_prims/", "_prims_common/", "_refs/", "_subclasses/"),
        *("autograd/", "export/", "fx/", "library.py", "overrides.py", "utils/"),
    )
)
"""Where torch asks on behalf of operators, which mean the same at all sizes. ``torch.nn`` and the like are parts of the model."""


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of sizes, ``node``, the answer that the program was traced with, and the line that asked."""

    node: SymNode
    answer: bool
    place: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor that was found not to be contiguous, by its sizes: where these are small, it may be."""

    sizes: tuple[SymNode, ...]
    place: str


@dataclass(frozen=True, slots=True)
class Computed:
    """A size as the result of an operation, before torch simplified it for sizes of at least 2."""

    method: str
    operands: tuple[SymNode, ...]


@dataclass(slots=True)
class Asked:
    """All questions of one export.

    Attributes:
        questions: In the order in which they were asked.
        layouts: What was asked of the memory of tensors.
        computed: How sizes and conditions came about, by the ``id`` of their node.
        places: The lines of the model's Python that computed sizes, by the ``id`` of the node.
    """

    questions: list[Question] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    computed: dict[int, tuple[SymNode, Computed]] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    _given: dict[int, SymNode] = field(default_factory=dict)
    """The nodes that no operation made, by their ``id``."""

    def forget(self) -> None:
        """Starts anew."""
        self.questions.clear()
        self.layouts.clear()
        self.computed.clear()
        self.places.clear()
        self._given.clear()

    def ask(self, node: Any, answer: bool) -> None:
        """Takes down an answer, if it is the model that asked."""
        if isinstance(node, SymNode) and (place := _place_of_asker(sys._getframe(2))) is not None:
            self.questions.append(Question(node, answer, place))

    def find_apart(self, tensor: torch.Tensor) -> None:
        """Takes down that a tensor is not contiguous, if it is the model that asked."""
        shape: tuple[int | torch.SymInt, ...] = tuple(tensor.shape)
        sizes = tuple(size.node for size in shape if isinstance(size, torch.SymInt))
        if sizes and (place := _place_of_asker(sys._getframe(2))) is not None:
            self.layouts.append(Layout(sizes, place))

    def compute(self, method: str, operands: tuple[SymNode, ...], result: SymNode) -> None:
        """Takes down an operation."""
        if id(result) in self._given:
            return
        # All nodes are kept, so that their ids stay their own.
        self.computed.setdefault(id(result), (result, Computed(method, operands)))
        self._given.update((id(operand), operand) for operand in operands if id(operand) not in self.computed)
        if not result.is_bool() and (place := _place_of_asker(sys._getframe(2))) is not None:
            self.places[id(result)] = place


@dataclass(frozen=True, slots=True)
class Traced:
    """An exported program, and what the model asked of sizes meanwhile."""

    program: ExportedProgram
    asked: Asked


@contextlib.contextmanager
def recorded(asked: Asked) -> Iterator[None]:
    """Records what Python asks of sizes inside; one thread at a time."""
    with contextlib.ExitStack() as changes:
        for method in sym_node.magic_methods:
            attribute = f"sym_{method}" if method in sym_node.magic_methods_on_operator_with_trailing_underscore else method
            changes.enter_context(_replaced(SymNode, attribute, _computing(asked, method, getattr(SymNode, attribute))))
        for name in ("guard_bool", "expect_true"):
            changes.enter_context(_replaced(SymNode, name, _answering(asked, getattr(SymNode, name))))
        changes.enter_context(_replaced(ShapeEnv, "evaluate_sym_node", _falling_back(asked, ShapeEnv.evaluate_sym_node)))
        static = symbolic_shapes._static_eval_sym_bool
        changes.enter_context(_replaced(symbolic_shapes, "_static_eval_sym_bool", _knowing(asked, static)))
        for name in ("guard_or_false", "guard_or_true", "statically_known_true"):
            changes.enter_context(_replaced(SymNode, name, _unrecorded(asked, getattr(SymNode, name))))
        changes.enter_context(_replaced(torch.Tensor, "is_contiguous", _looking(asked, torch.Tensor.is_contiguous)))
        yield


def _computing(asked: Asked, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: SymNode, *others: Any) -> Any:
        result = original(self, *others)
        if isinstance(result, SymNode) and all(isinstance(other, SymNode) for other in others):
            asked.compute(method, (self, *others), result)
        return result

    return compute


def _answering(asked: Asked, original: Callable[..., Any]) -> Callable[..., Any]:
    def answer(self: SymNode, file: str, line: int) -> Any:
        answered = original(self, file, line)
        # Operators in C++ give their own file.
        if not file or file.endswith(".py"):
            asked.ask(self, bool(answered))
        return answered

    return answer


def _falling_back(asked: Asked, original: Callable[..., Any]) -> Callable[..., Any]:
    """``guard_or_false`` and ``guard_or_true``."""

    def evaluate(self: ShapeEnv, node: SymNode, size_oblivious: bool = False, fallback_value: bool | None = None) -> Any:
        answered = original(self, node, size_oblivious, fallback_value)
        if fallback_value is not None:
            asked.ask(node, bool(answered))
        return answered

    return evaluate


def _knowing(asked: Asked, original: Callable[..., Any]) -> Callable[..., Any]:
    """``statically_known_true`` and its like."""

    def know(condition: torch.SymBool) -> Any:
        answered = original(condition)
        if answered is not None:
            asked.ask(condition.node, bool(answered))
        return answered

    return know


def _unrecorded(asked: Asked, original: Callable[..., Any]) -> Callable[..., Any]:
    """The same questions of operators in C++, which have no frame of their own."""

    def answer(self: SymNode, file: str, line: int) -> Any:
        before = len(asked.questions)
        answered = original(self, file, line)
        del asked.questions[before:]
        return answered

    return answer


def _looking(asked: Asked, original: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.is_contiguous``, which decides by sizes too."""

    def is_contiguous(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answered = original(self, *args, **kwargs)
        if not answered:
            asked.find_apart(self)
        return answered

    return is_contiguous


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    is_own, original = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def _place_of_asker(frame: FrameType | None) -> str | None:
    """The line of the model that asks, as ``file:line``; ``None`` where it is an operator that does."""
    while frame is not None and _passes_on(frame.f_code.co_filename, frame.f_code.co_name):
        frame = frame.f_back
    if frame is None or _is_internal(frame.f_code.co_filename):
        return None
    shown: FrameType | None = frame
    while shown is not None and shown.f_code.co_filename.startswith((_TORCH, _HERE)):
        shown = shown.f_back
    shown = shown or frame
    return f"{shown.f_code.co_filename}:{shown.f_lineno}"


@functools.cache
def _passes_on(file: str, function: str) -> bool:
    # Python makes the methods of data classes and named tuples; other code without a file may be the model's.
    is_generated = file.startswith("<frozen ") or (file == "<string>" and function.startswith("__"))
    return is_generated or file in _PASSED_ON or function == "__torch_function__"


@functools.cache
def _is_internal(file: str) -> bool:
    return file.startswith(_INTERNAL) and not file.startswith(_INTERPRETED)
