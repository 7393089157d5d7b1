"""What ``torchkiln.compile`` returns: a module that behaves like the user's, only faster."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln.capture import Captured
from torchkiln.compiled_program import CompiledProgram
from torchkiln.report import Report
from torchkiln.weights import WeightWatch


class CompiledModule(torch.nn.Module):
    """A compiled model, called with the arguments of the original.

    Results never require grad. Engine outputs are contiguous; outputs that alias arguments, buffers or one another do so as in eager.
    """

    def __init__(self, captured: Captured, program: CompiledProgram, *, follow: bool) -> None:
        super().__init__()
        self._captured = captured
        self._program = program
        self._watch = WeightWatch(captured.read_weights())
        self._follow = follow
        convention = captured.convention
        positions = dict(zip(convention.flat_inputs, convention.flat_positions, strict=True))
        buffers = {name: index for index, name in enumerate(convention.buffer_inputs)}
        self._sources = [
            ("argument", positions[name]) if name in positions else ("buffer", buffers[name])
            for name in program.partition.program.user_inputs
        ]

    @property
    def report(self) -> Report:
        """Segments, rejections and times of the compilation."""
        return self._program.report

    def refresh(self) -> None:
        """Re-reads the weights of the original module and rebuilds the engines that use changed ones."""
        weights = self._captured.read_weights()
        changed = self._watch.changed(weights)
        if changed:
            self._program.replace_weights(weights, changed)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the compiled model.

        Raises:
            TypeError: Arguments of another structure than at compile time.
            ValueError: A constant argument, dtype, device or rank other than at compile time.
            ShapeOutOfProfile: A size outside what was compiled.
        """
        if self._follow:
            self.refresh()
        convention = self._captured.convention
        flat = convention.flatten(args, kwargs)
        state = self._captured.read_state()
        with torch.no_grad():
            results = self._program([flat[index] if kind == "argument" else state[index] for kind, index in self._sources])
            return convention.unflatten(flat, state, results)
