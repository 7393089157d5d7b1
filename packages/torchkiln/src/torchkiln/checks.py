"""What each flat argument of a compiled program must be."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx
from torch.export.graph_signature import ConstantArgument

from torchkiln.size_guards import SizeGuard
from torchkiln_core import DimRange, ExportError, ShapeOutOfProfile, Size
from torchkiln_core.size import evaluate, linear, size_of, sizes_of, symbols_of

Constant = None | bool | int | float | str | torch.dtype | torch.device


@dataclass(frozen=True, slots=True)
class ArgumentCheck:
    """A tensor of given dtype, device and shape ``[*]``, an integer of a given range, or exactly one value.

    ``kind`` is ``"tensor"``, ``"int"`` or ``"constant"``; ``shape`` of an ``"int"`` holds its one symbol.
    """

    name: str
    kind: str
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    shape: tuple[Size, ...] = ()
    dims: Mapping[str, DimRange] = field(default_factory=dict)
    constant: Constant = None

    @property
    def is_constant(self) -> bool:
        """Whether the argument is fixed and does not enter the graph."""
        return self.kind == "constant"

    def __call__(self, value: Any, symbols: dict[str, int]) -> None:
        """Checks one argument; ``symbols`` collects the sizes seen in this call.

        Raises:
            TypeError: Not a tensor, or not an integer.
            ValueError: Another constant, dtype, device or rank.
            ShapeOutOfProfile: A size outside its range, or different from an equal one.
        """
        match self.kind:
            case "constant":
                if not _equal(self.constant, value):
                    raise ValueError(
                        f"argument {self.name}: expected {self.constant!r}, the value of compile time, got {_shown(value)}; "
                        "compile again for other values"
                    )
            case "int":
                if not isinstance(value, int) or isinstance(value, bool):
                    raise TypeError(f"argument {self.name}: expected int, got {type(value).__name__}")
                self._check_size(self.shape[0], value, "", symbols)
            case _:
                self._check_tensor(value, symbols)

    def _check_tensor(self, value: Any, symbols: dict[str, int]) -> None:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"argument {self.name}: expected a tensor, got {type(value).__name__}")
        if value.layout is not torch.strided:
            raise ValueError(f"argument {self.name}: expected a dense tensor, got layout {value.layout}; convert it with .to_dense()")
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise TypeError(
                f"argument {self.name}: expected a plain tensor, got one inside torch.func or torch.vmap, which cannot look into engines; "
                "apply the transform to the original model and compile that"
            )
        if value.dtype != self.dtype:
            raise ValueError(f"argument {self.name}: expected dtype {self.dtype}, got {value.dtype}; convert it or compile again")
        if value.device != self.device:
            raise ValueError(
                f"argument {self.name}: expected device {self.device}, got {value.device}; move it with .to({str(self.device)!r})"
            )
        if value.shape == self.shape:
            return
        if value.dim() != len(self.shape):
            raise ValueError(f"argument {self.name}: expected rank {len(self.shape)}, got shape {list(value.shape)}")
        for dim, (expected, got) in enumerate(zip(self.shape, value.shape, strict=True)):
            if expected != got:
                self._check_size(expected, got, f" dimension {dim}", symbols)

    def _check_size(self, expected: Size, got: int, place: str, symbols: dict[str, int]) -> None:
        if isinstance(expected, int):
            raise ShapeOutOfProfile(
                f"argument {self.name}{place}: expected {expected}, got {got}",
                fix="declare it in dynamic_shapes to compile for several sizes",
            )
        if isinstance(expected, sympy.Symbol):
            bounds = self.dims[expected.name]
            if not bounds.min <= got <= bounds.max:
                raise ShapeOutOfProfile(
                    f"argument {self.name}{place}: expected {bounds.min} to {bounds.max}, got {got}", fix=_widen(bounds)
                )
            if symbols.setdefault(expected.name, got) != got:
                raise ShapeOutOfProfile(
                    f"argument {self.name}{place}: expected {symbols[expected.name]} as in an earlier argument, got {got}"
                )
        elif all(name in symbols for name in symbols_of(expected)):
            if (size := evaluate(expected, symbols)) != got:
                raise ShapeOutOfProfile(f"argument {self.name}{place}: expected {expected} = {size}, got {got}")
        elif (line := linear(expected)) is not None:
            factor, offset, symbol = line
            value, rest = divmod(got - offset, factor)
            bounds = self.dims[symbol]
            if rest or not bounds.min <= value <= bounds.max:
                raise ShapeOutOfProfile(
                    f"argument {self.name}{place}: expected {expected} with {symbol} from {bounds.min} to {bounds.max}, got {got}",
                    fix=_widen(bounds),
                )
            symbols[symbol] = value


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_KNOWN = 4096
"""Sets of shapes that are remembered as right."""


class ArgumentChecks:
    """The checks of all flat arguments of a call; for shapes that passed before, one look-up.

    Args:
        checks: One per flat argument.
        guards: What must hold of their sizes.
    """

    def __init__(self, checks: Sequence[ArgumentCheck], guards: Sequence[SizeGuard] = ()) -> None:
        self._checks = tuple(checks)
        self._guards = tuple(guards)
        self._tensors = tuple(index for index, check in enumerate(checks) if check.kind == "tensor")
        self._others = tuple((index, check) for index, check in enumerate(checks) if check.kind != "tensor")
        # With integers among the arguments, sizes may depend on their values.
        self._quick = all(check.is_constant for _, check in self._others)
        self._known: set[Any] = set()

    def __call__(self, flat: Sequence[Any]) -> None:
        """Checks the arguments.

        Raises:
            TypeError: Not a tensor, or not an integer.
            ValueError: Another constant, dtype, device or rank.
            ShapeOutOfProfile: A size outside its range, different from an equal one, or of which a guard does not hold.
        """
        key = _fingerprint(flat, self._tensors) if self._quick else None
        if key is not None and key in self._known:
            for index, check in self._others:
                check(flat[index], {})
            return
        symbols: dict[str, int] = {}
        for check, value in zip(self._checks, flat, strict=True):
            check(value, symbols)
        for check, value in zip(self._checks, flat, strict=True):
            # A size in several symbols may stand before the dimensions that they are read from.
            check(value, symbols)
        self._check_guards(symbols)
        if key is not None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known.add(key)

    def _check_guards(self, symbols: Mapping[str, int]) -> None:
        for guard in self._guards:
            if guard.symbols <= set(symbols) and not guard.holds(symbols):
                places = self._places(guard.symbols)
                shown = ", ".join(f"{symbol} = {symbols[symbol]} ({places[symbol]})" for symbol in sorted(guard.symbols))
                if guard.question:
                    raise ShapeOutOfProfile(
                        f"arguments: expected sizes of which {guard}, since the model asks {guard.question}, and takes another way "
                        f"where they are not, got {shown}",
                        fix="declare min=2 for these sizes in dynamic_shapes and compile again",
                    )
                raise ShapeOutOfProfile(
                    f"arguments: expected sizes of which {guard}, as the model asked for while it was captured, got {shown}",
                    fix="compile again with example arguments of such sizes",
                )

    def _places(self, symbols: frozenset[str]) -> dict[str, str]:
        """Where each symbol stands, in words; a dimension that it is equal to before one that is computed from it."""
        computed: dict[str, str] = {}
        equal: dict[str, str] = {}
        for check in self._checks:
            for dim, size in enumerate(check.shape):
                place = f"argument {check.name}" + (f" dimension {dim}" if check.kind == "tensor" else "")
                for symbol in symbols.intersection(symbols_of(size)):
                    if isinstance(size, sympy.Symbol):
                        equal[symbol] = place
                    else:
                        computed.setdefault(symbol, f"{place} is {size}")
        return {**computed, **equal}


def _fingerprint(flat: Sequence[Any], tensors: Sequence[int]) -> Hashable | None:
    """All that the checks look at of the tensors at these positions; ``None`` where one is no plain tensor."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    seen: list[Hashable] = []
    for index in tensors:
        tensor = flat[index]
        if type(tensor) not in _PLAIN or wrapped(tensor):
            return None
        seen += (tensor.shape, tensor.dtype, tensor.device, tensor.layout)
    return tuple(seen)


def _widen(bounds: DimRange) -> str:
    why = (
        f"{bounds.max} is the default for a dimension without a maximum: give it one"
        if bounds.assumed
        else "widen min and max of this dimension"
    )
    return f"{why} in dynamic_shapes and compile again"


def check_of(name: str, spec: Any, node: torch.fx.Node | None, dims: Mapping[str, DimRange]) -> ArgumentCheck:
    """The check of an exported program's user input.

    Raises:
        ExportError: The input is of a type that cannot be checked or passed.
    """
    if isinstance(spec.arg, ConstantArgument):
        return ArgumentCheck(name, "constant", constant=spec.arg.value)
    value = None if node is None else node.meta.get("val")
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise ExportError(f"argument {name}: expected a dense tensor, got layout {value.layout}", fix="convert it with .to_dense()")
        used = {symbol: dims[symbol] for size in sizes_of(value.shape) for symbol in symbols_of(size)}
        return ArgumentCheck(name, "tensor", value.dtype, value.device, sizes_of(value.shape), used)
    if isinstance(value, torch.SymInt):
        size = size_of(value)
        return ArgumentCheck(name, "int", shape=(size,), dims={symbol: dims[symbol] for symbol in symbols_of(size)})
    if value is None or isinstance(value, (bool, int, float, str)):
        return ArgumentCheck(name, "constant", constant=value)
    raise ExportError(f"argument {name}: expected a tensor, number, string or None, got {type(value).__name__}")


def _shown(value: Any) -> str:
    """A value in an error message; a tensor without its elements."""
    return f"a tensor {value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _equal(expected: Any, got: Any) -> bool:
    if type(expected) is not type(got):
        return False
    return bool(expected == got) or (isinstance(expected, float) and math.isnan(expected) and math.isnan(got))
