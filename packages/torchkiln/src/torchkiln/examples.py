"""Example arguments as the tracer must see them: tensors of their own, whatever they share with one another or with the model."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


def separate(examples: Any, model: object) -> Any:
    """The examples with no tensor twice and no memory shared, also not with the model's parameters and buffers.

    Tracing knows a tensor by its identity: two arguments that are one tensor would become one input of the graph, and every later call
    would read one of its two arguments only.
    """
    taken = {_storage(tensor) for tensor in _tensors_of(model) if tensor.layout is torch.strided}

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        storage = _storage(leaf)
        copied = _copy(leaf) if storage in taken else leaf.detach()
        taken.add(storage)
        return copied.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(own, examples)


def _tensors_of(model: object) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of ``tensor`` ``[*]``, which a model may look at."""
    with torch.no_grad():
        copied = tensor.detach().clone()
        if copied.stride() == tensor.stride() or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return copied
        storage: torch.UntypedStorage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
        return copied.new_empty(0).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
