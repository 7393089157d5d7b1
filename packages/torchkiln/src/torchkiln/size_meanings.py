"""What sizes and conditions of a model are worth where some symbols are 0 or 1.

torch simplifies as it goes, for symbols that are at least 2: ``n >= 1`` is ``True`` and ``max(n, 1)`` is ``n`` from the start. So they are
computed anew, from the operations that made them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
from torch.fx.experimental import sym_node
from torch.fx.experimental.sym_node import SymNode

from torchkiln.asked import Asked


class SizeMeanings:
    """Sizes and conditions for some small sizes; other symbols stay symbols, and are at least 2.

    Args:
        asked: How they were computed.
        small: The small sizes, by symbol.
    """

    def __init__(self, asked: Asked, small: Mapping[str, int]) -> None:
        self._asked = asked
        self._small = small
        self._known: dict[int, Any] = {}

    def of(self, node: SymNode) -> sympy.Basic:
        """A size or condition as Python computes it.

        Raises:
            ZeroDivisionError: Python raises it too.
            TypeError: torch has no formula for it.
        """
        waiting = [node]
        while waiting:
            current = waiting[-1]
            made = self._asked.computed.get(id(current))
            missing = [] if made is None else [operand for operand in made[1].operands if id(operand) not in self._known]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if made is None:
                self._known[id(current)] = self.at(current.expr)
            else:
                self._known[id(current)] = _computed(made[1].method, [self._known[id(operand)] for operand in made[1].operands])
        return self._known[id(node)]

    def at(self, expression: Any) -> sympy.Basic:
        """What torch has for a size or condition.

        Raises:
            ZeroDivisionError: Python raises it too.
        """
        known = sympy.sympify(expression)
        return known.xreplace(
            {symbol: sympy.Integer(self._small[symbol.name]) for symbol in known.free_symbols if symbol.name in self._small}
        )

    def symbols(self, node: SymNode) -> set[str]:
        """Names of all symbols that it was computed from."""
        seen: set[int] = set()
        names: set[str] = set()
        waiting = [node]
        while waiting:
            current = waiting.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            if (made := self._asked.computed.get(id(current))) is not None:
                waiting += made[1].operands
            else:
                names |= {symbol.name for symbol in sympy.sympify(current.expr).free_symbols}
        return names

    def show(self, node: SymNode, depth: int = 6) -> str:
        """A size or condition as the model wrote it, as far as that is known; operations further down than ``depth`` as torch has them."""
        made = self._asked.computed.get(id(node))
        if made is None or depth == 0:
            return str(node.expr)
        method, operands = made[1].method, made[1].operands
        if method not in _SIGNS:
            return f"{method.removeprefix('sym_')}({', '.join(self.show(operand, depth - 1) for operand in operands)})"
        shown = [self.show(operand, depth - 1) for operand in operands]
        return f" {_SIGNS[method]} ".join(f"({item})" if " " in item else item for item in shown)


def _computed(method: str, operands: Sequence[sympy.Basic]) -> sympy.Basic:
    formula: Any = sym_node.magic_methods[method]
    try:
        return sympy.sympify(formula(*operands))
    except ZeroDivisionError:
        raise
    except Exception as error:
        raise TypeError(f"{method}: torch has no formula for {', '.join(map(str, operands))}") from error


_SIGNS = {
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"add": "+", "sub": "-", "mul": "*", "mod": "%", "int_floordiv": "//", "int_truediv": "/", "and": "and", "or": "or"},
}
