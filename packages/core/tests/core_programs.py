"""Exported programs, symbolic sizes and small networks that the tests share."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torchkiln_core import DimRange, Network, Size
from torchkiln_core.size import evaluate, parse_size, size_of


class Symbols:
    """A fake mode with one symbol per label, such as ``n``; sizes are written as text over labels."""

    def __init__(self, hints: Mapping[str, int]) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.ints: dict[str, torch.SymInt] = {}
        for label, hint in hints.items():
            symbol = self.env.create_symbol(hint, ConstantSource(label), DimDynamic.DYNAMIC)
            self.ints[label] = self.env.create_symintnode(symbol, hint=hint)
        self._names = {parse_size(label): size_of(value) for label, value in self.ints.items()}

    def network(self) -> Network:
        """An empty network whose symbols range from 2 to 64."""
        names = [str(self.size(label)) for label in self.ints]
        return Network({name: DimRange(name, 2, 8, 64) for name in names}, self.mode)

    def size(self, text: int | str) -> Size:
        """``2*n`` as an expression over the symbol of ``n``."""
        parsed = parse_size(text) if isinstance(text, str) else text
        result = sympy.sympify(parsed).xreplace(self._names)
        return int(result) if result.is_Integer else result

    def values(self, by_label: Mapping[str, int]) -> dict[str, int]:
        """Values of the symbols, by their own names."""
        return {str(self.size(label)): value for label, value in by_label.items()}

    def state(self) -> tuple[int, int, int]:
        """What changes when a symbol is specialised."""
        return len(self.env.guards), len(self.env.replacements), len(self.env.var_to_range)


def shape_at(shape: tuple[Size, ...], symbols: Mapping[str, int]) -> tuple[int, ...]:
    """A symbolic shape ``[*]`` at values of its symbols."""
    return tuple(evaluate(size, symbols) for size in shape)


def exported(module: torch.nn.Module, args: tuple[torch.Tensor, ...], dynamic_shapes: object = None) -> torch.export.ExportedProgram:
    """The exported program of a module."""
    return torch.export.export(module.eval(), args, dynamic_shapes=dynamic_shapes)


def fake_inputs(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    """The fake tensors of the user inputs."""
    names = set(program.graph_signature.user_inputs)
    return [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]


def network_over(*fakes: torch.Tensor, dims: Mapping[str, DimRange] | None = None) -> Network:
    """A network in the fake mode of exported inputs, with those inputs ``x0``, ``x1``, ..."""
    net = Network(dims, fakes[0].fake_mode)
    for index, fake in enumerate(fakes):
        net.input(f"x{index}", fake.dtype, fake.shape)
    return net
