"""Where a compiled module reads its weights and buffers: in the user's module while it lives, as they are now."""

from __future__ import annotations

import operator
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from torchkiln_core import ExportError


class WeightSource:
    """Finds tensors by qualified name in the user's module while it lives; afterwards gives those that it saw last.

    Args:
        held: The tensors of capture time by qualified name.
        model: What the user gave; tensors are read from it when it is a module. Held weakly.
        targets: Qualified names of the tensors that will be read.

    Raises:
        ExportError: One of them is no tensor.
    """

    def __init__(self, held: Mapping[str, Any], model: object, targets: Iterable[str]) -> None:
        self._module = weakref.ref(model) if isinstance(model, torch.nn.Module) else lambda: None
        self._seen: dict[str, torch.Tensor] = {}
        for target in targets:
            tensor = held.get(target)
            if not isinstance(tensor, torch.Tensor):
                raise ExportError(f"constant {target}: expected a tensor, got {type(tensor).__name__}")
            self._seen[target] = tensor
        self._specs = {target: _spec(tensor) for target, tensor in self._seen.items()}
        # Tensors that only the graph holds, such as torch.tensor(2.0) in a forward, are not in the module.
        self._in_module = frozenset(target for target in self._seen if isinstance(_attribute(self._module(), target), torch.Tensor))
        self._ties = _ties(self._module(), self._in_module)

    def read(self, target: str) -> torch.Tensor:
        """The tensor as it is now.

        Raises:
            ValueError: It is gone, has another dtype, device or shape than at compile time, or is no longer shared as it was.
        """
        module = self._module()
        if module is None or target not in self._in_module:
            return self._seen[target]
        found = _attribute(module, target)
        if not isinstance(found, torch.Tensor) or _spec(found) != self._specs[target]:
            got = _shown(_spec(found)) if isinstance(found, torch.Tensor) else "no tensor of this name"
            expected = _shown(self._specs[target])
            raise ValueError(f"weight {target}: expected {expected}, as at compile time, got {got}; compile again for the changed model")
        for other in self._ties.get(target, ()):
            if not _is_same(found, _attribute(module, other)):
                raise ValueError(
                    f"weight {target}: expected the tensor that {other} shares, as at compile time, got another; "
                    "assign both, or compile again for the changed model"
                )
        self._seen[target] = found
        return found


def _attribute(module: torch.nn.Module | None, target: str) -> object:
    # Not get_submodule, which TorchScript modules lack.
    try:
        found: object = operator.attrgetter(target)(module)
    except AttributeError:
        return None
    return found


def _spec(tensor: torch.Tensor) -> tuple[torch.dtype, torch.device, torch.Size]:
    return tensor.dtype, tensor.device, tensor.shape


def _shown(spec: tuple[torch.dtype, torch.device, torch.Size]) -> str:
    dtype, device, shape = spec
    return f"{dtype} {list(shape)} on {device}"


def _ties(module: torch.nn.Module | None, targets: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """For each target the other names of the same tensor in the module: export reads such a tensor under one of them."""
    names: dict[int, list[str]] = defaultdict(list)
    if module is not None:
        for named in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
            for name, tensor in named:
                names[id(tensor)].append(name)
    shared = {target: tuple(name for name in names[id(_attribute(module, target))] if name != target) for target in targets}
    return {target: others for target, others in shared.items() if others}


def _is_same(tensor: torch.Tensor, other: object) -> bool:
    if tensor is other:
        return True
    return (
        isinstance(other, torch.Tensor)
        and _spec(tensor) == _spec(other)
        and tensor.stride() == other.stride()
        and tensor.data_ptr() == other.data_ptr()
        and tensor.data_ptr() != 0
    )
