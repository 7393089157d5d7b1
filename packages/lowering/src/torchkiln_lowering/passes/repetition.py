"""Proof that a value holds the same numbers twice, as the tables of rotary embeddings do."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.call import OpCall
from torchkiln_lowering.effects import ELEMENTARY, is_shareable
from torchkiln_lowering.metadata import known_equal
from torchkiln_lowering.passes.constants import constant_value
from torchkiln_lowering.passes.merging import RESHAPES, TRANSPOSES, order_of

aten = torch.ops.aten
_LONGEST = 48
"""Calls that are looked at: more than any known model needs, and few enough for graphs of any size to take linear time."""


class Same(enum.Enum):
    """What is equal within a value ``[*, L, D]``."""

    HALVES = "the features i and i + D / 2"
    NEIGHBOURS = "the features 2 i and 2 i + 1"
    COLUMNS = "all features of a row"
    ROWS = "all rows"


Claim = tuple[torch.fx.Node, Same]


def repeats(module: torch.fx.GraphModule, table: torch.fx.Node, same: Same) -> bool:
    """Whether a value ``[*, D]`` is known to repeat: by the calls that make it, or by its contents if it is constant."""
    waiting: list[Claim] = [(table, same)]
    seen: set[Claim] = set()
    while waiting:
        claim = waiting.pop()
        if claim in seen:
            continue
        seen.add(claim)
        if len(seen) > _LONGEST:
            return False
        reasons = _reasons(*claim)
        if reasons is None and not _is_seen(module, *claim):
            return False
        waiting += reasons or ()
    return True


def _reasons(node: torch.fx.Node, same: Same) -> list[Claim] | None:
    """The claims that a claim follows from; ``None`` where none are known."""
    place = _place(same)
    if same in (Same.COLUMNS, Same.ROWS) and _is_single(node, place):
        return []
    if not isinstance(node.target, OpOverload) or not is_shareable(node):
        return None
    if torch.Tag.pointwise in node.target.tags or node.target in ELEMENTARY or node.target is aten.expand.default:
        tensors = [source for source in node.all_input_nodes if isinstance(source.meta["val"], torch.Tensor)]
        return [(source, same) for source in tensors if not _is_single(source, place)]
    rule = _RULES.get(node.target)
    return None if rule is None else rule(OpCall.from_node(node), same)


def _place(same: Same) -> int:
    """The dimension, counted from the end, that a claim is about."""
    return 2 if same is Same.ROWS else 1


def _is_single(node: torch.fx.Node, place: int) -> bool:
    """Whether a value broadcasts over a dimension, counted from the end."""
    value = node.meta["val"]
    return value.dim() < place or bool(statically_known_true(value.shape[-place] == 1))


def _is_seen(module: torch.fx.GraphModule, node: torch.fx.Node, same: Same) -> bool:
    """Whether a constant is seen to repeat."""
    value = constant_value(module, node) if isinstance(node.meta.get("val"), torch.Tensor) else None
    if value is None or value.dim() < _place(same) or (_place(same) == 1 and value.shape[-1] % 2):
        return False
    if same is Same.HALVES:
        return torch.equal(*value.chunk(2, -1))
    if same is Same.NEIGHBOURS:
        return torch.equal(value[..., ::2], value[..., 1::2])
    first = value.narrow(-_place(same), 0, 1)
    return torch.equal(value, first.expand_as(value))


def _by_moved(call: OpCall, same: Same) -> list[Claim] | None:
    """A view that leaves the last dimension alone: it inserts, removes, cuts or picks from another one."""
    source, dim = call.arguments["self"], call.arguments["dim"]
    inserts = call.target is aten.unsqueeze.default
    rank = source.meta["val"].dim() + inserts
    last = rank - (_place(same) if inserts else 1)
    apart = all(int(item) % rank < last for item in (dim if isinstance(dim, (list, tuple)) else (dim,)))
    return [(source, same)] if apart and (inserts or same is not Same.ROWS) else None


def _by_view(call: OpCall, same: Same) -> list[Claim] | None:
    """Rows stay rows; two equal rows that are put into one are its halves, equal pairs its neighbours."""
    source, place = call.arguments["self"], _place(same)
    before, after = source.meta["val"].shape, call.outputs[0].shape
    if len(before) >= place and known_equal(before[-place:], after[-place:]):
        return [(source, same)]
    half = after[-1] // 2
    if same is Same.HALVES and known_equal(before[-2:], (2, half)):
        return [(source, Same.ROWS)]
    return [(source, Same.COLUMNS)] if same is Same.NEIGHBOURS and known_equal(before[-2:], (half, 2)) else None


def _by_join(call: OpCall, same: Same) -> list[Claim] | None:
    """One value joined to itself, or several along another dimension."""
    parts, dim = list(call.arguments["tensors"]), int(call.arguments["dim"])
    rank = call.outputs[0].dim()
    along, once = dim % rank == rank - _place(same), len(set(parts)) == 1
    if call.target is aten.stack.default:
        return [] if along and once and same in (Same.COLUMNS, Same.ROWS) else None
    if not along:
        return [(part, same) for part in parts]
    single = _is_single(parts[0], _place(same))
    return [] if once and (single or (same is Same.HALVES and len(parts) == 2)) else None


def _by_repeat(call: OpCall, same: Same) -> list[Claim] | None:
    source, count = call.arguments["self"], call.arguments["repeats"][-_place(same)]
    if _is_single(source, _place(same)) or (same is Same.HALVES and count == 2):
        return []
    return [(source, same)] if count == 1 else None


def _by_interleaving(call: OpCall, same: Same) -> list[Claim] | None:
    dim, rank = call.arguments["dim"], call.outputs[0].dim()
    last = dim is not None and int(dim) % rank == rank - 1
    return [] if same is Same.NEIGHBOURS and last and call.arguments["repeats"] == 2 else None


def _by_index(call: OpCall, same: Same) -> list[Claim] | None:
    """Rows picked by indices into other dimensions than the last."""
    source, indices = call.arguments["self"], call.arguments["indices"]
    rows = same is not Same.ROWS and not any(item is not None for item in indices[source.meta["val"].dim() - 1 :])
    return [(source, same)] if rows else None


def _by_embedding(call: OpCall, same: Same) -> list[Claim] | None:
    return None if same is Same.ROWS else [(call.arguments["weight"], same)]


def _by_transpose(call: OpCall, same: Same) -> list[Claim] | None:
    order = order_of(call.node)
    stays = order[-_place(same) :] == list(range(len(order)))[-_place(same) :]
    return [(call.arguments["self"], same)] if stays else None


_RULES: Mapping[OpOverload, Callable[[OpCall, Same], list[Claim] | None]] = types.MappingProxyType(
    {
        aten.unsqueeze.default: _by_moved,
        aten.squeeze.dim: _by_moved,
        aten.squeeze.dims: _by_moved,
        aten.slice.Tensor: _by_moved,
        aten.select.int: _by_moved,
        aten.index_select.default: _by_moved,
        aten.cat.default: _by_join,
        aten.stack.default: _by_join,
        aten.repeat.default: _by_repeat,
        aten.repeat_interleave.self_int: _by_interleaving,
        aten.index.Tensor: _by_index,
        aten.embedding.default: _by_embedding,
    }
    | dict.fromkeys(RESHAPES, _by_view)
    | dict.fromkeys(TRANSPOSES, _by_transpose)
)
