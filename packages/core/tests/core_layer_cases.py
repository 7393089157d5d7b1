"""One row per use of a layer: the layer, its operands, and the same in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from core_programs import Symbols

from torchkiln_core import Interpreter, Layer, Network, Size, Value
from torchkiln_core.size import evaluate, parse_size
from torchkiln_testing import OpClass

HINTS = {"n": 5, "m": 4}


@dataclass(frozen=True)
class T:
    """A tensor operand: shape over the labels ``n`` and ``m``, dtype, and the values in ``[low, high)``."""

    shape: tuple[int | str, ...]
    dtype: torch.dtype = torch.float32
    low: float = -2.0
    high: float = 2.0

    def make(self, sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
        shape = tuple(evaluate(parse_size(str(size)), sizes) for size in self.shape)
        if self.dtype is torch.bool:
            return torch.rand(shape, generator=generator) > 0.5
        if not self.dtype.is_floating_point:
            return torch.randint(int(self.low), int(self.high), shape, generator=generator, dtype=self.dtype)
        return (torch.rand(shape, generator=generator) * (self.high - self.low) + self.low).to(self.dtype)


@dataclass(frozen=True)
class Sizes:
    """A size operand over the labels ``n`` and ``m``."""

    parts: tuple[int | str, ...]


@dataclass(frozen=True)
class Case:
    """A layer on operands (tensors, sizes or ``None``), and the function of the tensors that it equals."""

    name: str
    layer: Layer
    operands: tuple[T | Sizes | None, ...]
    expected: Callable[..., Any]
    op_class: OpClass = OpClass.EXACT
    sizes: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[T, ...]:
        return tuple(operand for operand in self.operands if isinstance(operand, T))

    def make(self, sizes: dict[str, int]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(7)
        return [tensor.make(sizes, generator) for tensor in self.tensors]

    def reference(self, sizes: dict[str, int]) -> Any:
        """What plain torch makes of the tensors; the sizes named in ``sizes`` follow them."""
        return self.expected(*self.make(sizes), *(sizes[label] for label in self.sizes))

    def symbolic(self) -> tuple[Symbols, Network]:
        """The network of the one layer with symbols for the labels."""
        symbols = Symbols(HINTS)
        net = symbols.network()
        self._write(net, symbols.size)
        return symbols, net

    def static(self, sizes: dict[str, int]) -> Network:
        """The network with integers for all sizes."""
        net = Network()
        self._write(net, lambda size: evaluate(parse_size(str(size)), sizes))
        return net

    def run(self, net: Network, sizes: dict[str, int]) -> tuple[torch.Tensor, ...]:
        """The network's outputs; its first input has the shape ``[n, m]`` and carries the symbols."""
        return Interpreter(net)(torch.zeros(sizes["n"], sizes["m"], dtype=torch.int8), *self.make(sizes))

    def _write(self, net: Network, size_of: Callable[[int | str], Size]) -> None:
        net.input("dims", torch.int8, [net.symbolic_int(size_of(label)) for label in HINTS])
        operands: list[Value | None] = []
        for index, operand in enumerate(self.operands):
            match operand:
                case T():
                    operands.append(net.input(f"x{index}", operand.dtype, [net.symbolic_int(size_of(size)) for size in operand.shape]))
                case Sizes():
                    operands.append(net.size_tensor([size_of(part) for part in operand.parts]))
                case None:
                    operands.append(None)
        with net.scope(self.name, "model.py:1"):
            results = net.add_many(self.layer, *operands)
        for index, result in enumerate(results):
            net.output(f"y{index}", result)
