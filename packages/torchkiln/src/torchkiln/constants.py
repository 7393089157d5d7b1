"""Tensors that a traced graph holds as attributes, made into placeholders: every weight of a program is one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.fx


def lift_constants(module: torch.fx.GraphModule) -> Mapping[str, torch.Tensor]:
    """Replaces, in place, every tensor attribute by a placeholder behind the others; gives their tensors by placeholder name, in order."""
    lifted: dict[str, torch.Tensor] = {}
    placeholders: dict[str, torch.fx.Node] = {}
    last = next((node for node in reversed(module.graph.nodes) if node.op == "placeholder"), None)
    for node in list(module.graph.nodes):
        tensor = _attribute(module, str(node.target)) if node.op == "get_attr" else None
        if not isinstance(tensor, torch.Tensor):
            continue
        target = str(node.target)
        if target not in placeholders:
            anchor = (
                module.graph.inserting_after(last) if last is not None else module.graph.inserting_before(next(iter(module.graph.nodes)))
            )
            with anchor:
                last = module.graph.placeholder(f"constant_{len(lifted)}")
            last.meta = dict(node.meta)
            placeholders[target] = last
            lifted[last.name] = tensor
        node.replace_all_uses_with(placeholders[target])
        module.graph.erase_node(node)
    if lifted:
        module.recompile()
    return lifted


def _attribute(module: torch.nn.Module, target: str) -> object:
    owner, _, name = target.rpartition(".")
    return getattr(module.get_submodule(owner), name)
