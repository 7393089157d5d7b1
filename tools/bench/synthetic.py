"""Synthetic programs of any size for the partitioner, and an oracle that refuses a given operator."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torchkiln_core import OpCall, Program, Rejection
from torchkiln_core.program import InputKind, ProgramInput

aten = torch.ops.aten
REFUSED = aten.lgamma.default
_WINDOW = 8
"""How far back a call reads: long chains with short side branches, as models have them."""


@dataclass(frozen=True, slots=True)
class RefuseOne:
    """Takes every call but those of ``REFUSED``."""

    @property
    def targets(self) -> frozenset[Callable[..., Any]]:
        """Operators that are taken."""
        return frozenset({aten.add.Tensor, aten.relu.default})

    def reject(self, call: OpCall) -> Rejection | None:
        """Why a call is refused."""
        return Rejection.of(call, "no-converter", "no converter is registered") if call.target is REFUSED else None


def synthetic_program(count: int, refused_share: float, seed: int = 0) -> Program:
    """A chain of ``count`` calls with short cuts, all of them live, of which the given share is refused."""
    draw = random.Random(seed)
    value = torch._subclasses.FakeTensorMode().from_tensor(torch.empty(64, 64))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = value
    last, unread = x, collections.deque([x], maxlen=_WINDOW)
    for _ in range(count):
        if draw.random() < refused_share:
            node = graph.call_function(REFUSED, (last,))
        elif len(unread) > 1 and draw.random() < 0.5:
            node = graph.call_function(aten.add.Tensor, (last, unread.popleft()))
        else:
            node = graph.call_function(aten.relu.default, (last,))
        node.meta["val"] = value
        last = node
        if draw.random() < 0.25:
            unread.append(node)
    graph.output((last,))
    module = torch.fx.GraphModule({}, torch.fx.Graph())
    module._graph = graph  # the text of a graph of a million nodes is of no use here
    return Program(module, (ProgramInput("x", InputKind.USER),), {}, {})
