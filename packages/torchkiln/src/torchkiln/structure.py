"""How the arguments of a call are taken apart and its result is put together, as pytrees say, where the structure is known beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from torchkiln.model_outputs import ModelOutputForm

_LEAVES = (torch.Tensor, bool, int, float, str, type(None))
_USUAL = frozenset({*_LEAVES, torch.nn.Parameter})


def rebuilt_order(spec: pytree.TreeSpec, first: int = 0) -> list[int]:
    """The leaves of a value, by their place from ``first`` on, as they come once it was put together by ``spec`` and is taken apart again.

    Fields of transformers' ``ModelOutput`` come in the order in which a model sets them, and behind that in the order of their class.
    """
    if spec.is_leaf():
        return [first]
    children = spec.children()
    starts = list(itertools.accumulate((child.num_leaves for child in children), initial=first))
    # That of a named tuple is no class.
    is_mapping = isinstance(spec.type, type) and issubclass(spec.type, Mapping)
    order = _rebuilt_children(spec, len(children)) if is_mapping else range(len(children))
    return [place for child in order for place in rebuilt_order(children[child], starts[child])]


def _rebuilt_children(spec: pytree.TreeSpec, count: int) -> list[int]:
    registered = pytree.SUPPORTED_NODES[spec.type]
    parts = [torch.empty(0) for _ in range(count)]
    places = {id(part): place for place, part in enumerate(parts)}
    found, _ = registered.flatten_fn(registered.unflatten_fn(parts, spec.context))
    return [places[id(part)] for part in found]


@dataclass(frozen=True, slots=True)
class LeafForm:
    """The form of calls whose arguments are no containers; flattening these takes a fiftieth of what a pytree takes."""

    positional: int
    keywords: tuple[str, ...]

    @classmethod
    def of(cls, spec: pytree.TreeSpec) -> Self | None:
        """``None`` when an argument of ``(args, kwargs)`` is a container."""
        args, kwargs = spec.children()
        if not all(child.is_leaf() for child in (*args.children(), *kwargs.children())):
            return None
        return cls(args.num_children, tuple(kwargs.context or ()))

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The arguments in order; ``None`` when the call has another form."""
        if len(args) != self.positional or tuple(kwargs) != self.keywords:
            return None
        flat = [*args, *kwargs.values()]
        return flat if _USUAL.issuperset(map(type, flat)) or all(isinstance(value, _LEAVES) for value in flat) else None


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a known structure. Unlike a pytree, it makes no description of a value to compare it with its own.

    Attributes:
        kind: Its type.
        context: What pytree knows of it besides its children.
        children: In order; ``None`` stands for a leaf.
        of_leaves: Whether no child is a container.
        model_output: The quick way to make one of transformers' results.
    """

    kind: Any
    context: Any
    children: tuple[Container | None, ...]
    of_leaves: bool
    model_output: ModelOutputForm | None

    @classmethod
    def of(cls, spec: pytree.TreeSpec) -> Container | None:
        """``None`` for a leaf."""
        if spec.is_leaf():
            return None
        children = tuple(cls.of(child) for child in spec.children())
        of_leaves = all(child is None for child in children)
        return cls(spec.type, spec.context, children, of_leaves, ModelOutputForm.of(spec.type, spec.context, len(children)))

    def take_apart(self, value: Any, leaves: list[Any]) -> bool:
        """Adds the leaves of a value of this structure; ``False`` for one that has, or may have, another."""
        registered = pytree.SUPPORTED_NODES.get(self.kind)
        if registered is None or type(value) is not self.kind:
            return False
        found, context = registered.flatten_fn(value)
        children = list(found)
        if len(children) != len(self.children) or context != self.context:
            return False
        if self.of_leaves:
            leaves += children
            return True
        for structure, child in zip(self.children, children, strict=True):
            if structure is None:
                leaves.append(child)
            elif not structure.take_apart(child, leaves):
                return False
        return True

    def put_together(self, leaves: Iterator[Any]) -> Any:
        """A value of this structure of the next leaves."""
        if self.of_leaves:
            children = list(itertools.islice(leaves, len(self.children)))
        else:
            children = [next(leaves) if child is None else child.put_together(leaves) for child in self.children]
        if self.model_output is not None and self.model_output.takes(children):
            return self.model_output.make(children)
        return pytree.SUPPORTED_NODES[self.kind].unflatten_fn(children, self.context)


@dataclass(frozen=True, slots=True)
class ContainerForm:
    """The form of calls with containers among their arguments."""

    args: Container
    kwargs: Container

    @classmethod
    def of(cls, spec: pytree.TreeSpec) -> Self | None:
        """``None`` when ``(args, kwargs)`` are no containers themselves."""
        args, kwargs = map(Container.of, spec.children())
        return None if args is None or kwargs is None else cls(args, kwargs)

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The leaves in order; ``None`` when the call has, or may have, another form."""
        flat: list[Any] = []
        if not (self.args.take_apart(args, flat) and self.kwargs.take_apart(kwargs, flat)):
            return None
        # Of a subclass it is not known here whether pytree takes it for a container.
        return flat if _USUAL.issuperset(map(type, flat)) else None
