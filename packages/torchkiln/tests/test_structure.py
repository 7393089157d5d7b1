"""Arguments and results are taken apart and put together as pytrees are, by a structure that is known beforehand."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from torchkiln.structure import Container, ContainerForm, LeafForm, rebuilt_order

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Both:
    left: Any
    right: Any = None


class Mode(enum.StrEnum):
    FAST = "fast"
    SLOW = "slow"


pytree.register_dataclass(Both)
pytree.register_constant(Mode)
X = torch.zeros(2)
VALUES: list[Any] = [
    (X,),
    [X, 1, None],
    {"a": X, "b": (1.5, "text", [X, True])},
    {"a": Both(X, Both(X))},
    OrderedDict(b=X, a={}),
    defaultdict(list, a=[X], b=[]),
    (Both(X, (X, X)), (), []),
    {1: X, "1": torch.nn.Parameter(X)},
    (Mode.FAST, X),
    torch.return_types.max((X, X)),
    ((((X,),),),),
]


def _is_same(left: Any, right: Any) -> bool:
    leaves, spec = pytree.tree_flatten(left)
    others, other_spec = pytree.tree_flatten(right)
    return spec == other_spec and type(left) is type(right) and all(a is b for a, b in zip(leaves, others, strict=True))


@pytest.mark.parametrize("value", [*VALUES, Pair(X, 1), {"a": Pair(X, (X,))}], ids=repr)
def test_results_are_put_together_as_by_pytree(value: Any) -> None:
    leaves, spec = pytree.tree_flatten(value)
    structure = Container.of(spec)
    assert structure is not None
    rest = iter([*leaves, "rest"])
    assert _is_same(structure.put_together(rest), pytree.tree_unflatten(leaves, spec))
    assert next(rest) == "rest"


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_arguments_are_taken_apart_as_by_pytree(value: Any) -> None:
    args, kwargs = (value, X), {"named": value}
    leaves, spec = pytree.tree_flatten((args, kwargs))
    form = ContainerForm.of(spec)
    assert form is not None
    assert LeafForm.of(spec) is None
    flat = form.flatten(args, kwargs)
    assert flat is not None
    assert all(left is right for left, right in zip(flat, leaves, strict=True))


class Sorted(dict[str, Any]):
    """Has its keys in alphabetical order, as soon as pytree makes it."""


pytree.register_pytree_node(
    Sorted,
    lambda value: (list(value.values()), list(value)),
    lambda values, keys: Sorted(sorted(zip(keys, values, strict=True))),
    serialized_type_name="test_structure.Sorted",
)


def test_leaves_come_in_another_order_once_a_mapping_sorted_them() -> None:
    value = (X, Sorted(b=(X, [X]), a=Sorted(d=X, c=X)), X)
    assert rebuilt_order(pytree.tree_structure(value)) == [0, 4, 3, 1, 2, 5]
    for plain in VALUES:
        spec = pytree.tree_structure(plain)
        assert rebuilt_order(spec) == list(range(spec.num_leaves))


def test_no_value_of_another_structure_is_taken_apart() -> None:
    for value in VALUES:
        form = ContainerForm.of(pytree.tree_structure(((value,), {})))
        assert form is not None
        for other in [*VALUES, X, Mode.SLOW, (Mode.SLOW, X), Pair(X, X), {"b": X, "a": X}, object()]:
            same = pytree.tree_structure(other) == pytree.tree_structure(value)
            assert (form.flatten((other,), {}) is not None) == same
            assert form.flatten((other, X), {}) is None
            assert form.flatten((other,), {"named": X}) is None


def test_a_value_that_pytree_takes_for_a_container_is_no_leaf() -> None:
    form = ContainerForm.of(pytree.tree_structure((([X, "fast"],), {})))
    assert form is not None
    assert form.flatten(([X, "slow"],), {}) == [X, "slow"]
    assert form.flatten(([X, Mode.FAST],), {}) is None
