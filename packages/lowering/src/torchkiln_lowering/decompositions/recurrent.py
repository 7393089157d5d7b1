"""Recurrent networks, unrolled over a static number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompose import MAX_CALLS
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten
_CALLS = 17
"""Calls that one step of one direction of one layer becomes, at most."""


def lstm(  # noqa: PLR0913 -- ATen's signature
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any, Any]:
    """``lstm`` of ``[T, N, C]``, or ``[N, T, C]`` with ``batch_first``: the outputs, and the last state and cell of every layer.

    Source: ATen/native/RNN.cpp.
    """
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    states, cells = [], []
    steps = list(aten.unbind.int(input, 1 if batch_first else 0))
    for layer in range(num_layers):
        ways = []
        for way in range(directions):
            place = layer * directions + way
            start = tuple(aten.select.int(item, 0, place) for item in hx)
            cell = _Cell(params[place * each : (place + 1) * each], has_biases)
            outputs, state, memory = cell.run(steps[::-1] if way else steps, *start)
            ways.append(outputs[::-1] if way else outputs)
            states.append(state)
            cells.append(memory)
        steps = [aten.cat.default(list(both), -1) for both in zip(*ways, strict=True)] if bidirectional else ways[0]
    return aten.stack.default(steps, 1 if batch_first else 0), aten.stack.default(states), aten.stack.default(cells)


class _Cell:
    """One direction of one layer: weights ``[4 H, C]`` and ``[4 H, P]``, biases ``[4 H]``, a projection ``[P, H]``."""

    def __init__(self, params: Sequence[torch.Tensor], has_biases: bool) -> None:
        self._of_input, self._of_state = params[:2]
        self._biases = (params[2], params[3]) if has_biases else (None, None)
        rest = params[4 if has_biases else 2 :]
        self._projection = rest[0] if rest else None
        self._hidden = params[0].shape[0] // 4

    def run(self, steps: list[Any], state: Any, memory: Any) -> tuple[list[Any], Any, Any]:
        """Inputs ``[N, C]`` in the order that the cell sees them; outputs ``[N, P]`` in the same order."""
        outputs = []
        # One product for all steps.
        gates_of_inputs = aten.linear.default(aten.stack.default(steps), self._of_input, self._biases[0])
        for gates in aten.unbind.int(gates_of_inputs):
            state, memory = self._step(gates, state, memory)
            outputs.append(state)
        return outputs, state, memory

    def _step(self, gates: Any, state: Any, memory: Any) -> tuple[Any, Any]:
        gates = aten.add.Tensor(gates, aten.linear.default(state, self._of_state, self._biases[1]))
        # The new value is the third of four gates, and the only one that is no sigmoid: one call for the other three is cheaper.
        opened = aten.sigmoid.default(gates)
        entering, kept, leaving = (self._gate(opened, which) for which in (0, 1, 3))
        new = aten.tanh.default(self._gate(gates, 2))
        memory = aten.add.Tensor(aten.mul.Tensor(kept, memory), aten.mul.Tensor(entering, new))
        state = aten.mul.Tensor(leaving, aten.tanh.default(memory))
        return state if self._projection is None else aten.linear.default(state, self._projection), memory

    def _gate(self, gates: Any, which: int) -> Any:
        return aten.slice.Tensor(gates, 1, which * self._hidden, (which + 1) * self._hidden)


def _has_one_dtype(call: OpCall) -> bool:
    """Under autocast there are several."""
    input, hx, params = (call.arguments[name] for name in ("input", "hx", "params"))
    return len({item.meta["val"].dtype for item in (input, *hx, *params)}) == 1


def _drops_nothing(call: OpCall) -> bool:
    return not (call.arguments["train"] and call.arguments["dropout"] > 0 and call.arguments["num_layers"] > 1)


def _steps(call: OpCall) -> Any:
    return call.arguments["input"].meta["val"].shape[1 if call.arguments["batch_first"] else 0]


def _knows_steps(call: OpCall) -> bool:
    return isinstance(_steps(call), int) and _steps(call) > 0


def _is_short(call: OpCall) -> bool:
    cells = call.arguments["num_layers"] * (2 if call.arguments["bidirectional"] else 1)
    return bool((_steps(call) + 1) * cells * _CALLS <= MAX_CALLS)


_UNROLLS = (
    Requires("one dtype of inputs, states and weights", _has_one_dtype),
    Requires("no dropout", _drops_nothing),
    Requires("a known number of steps", _knows_steps),
    Requires(f"(steps + 1) * layers * directions <= {MAX_CALLS // _CALLS}", _is_short),
)

RECURRENT: dict[Callable[..., Any], Decomposition] = {aten.lstm.input: Decomposition(lstm, limits=_UNROLLS)}
