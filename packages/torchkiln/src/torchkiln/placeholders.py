"""Placeholder names that survive copies of a graph: FX renames those that stand for a builtin, such as ``input``."""

from __future__ import annotations

from collections.abc import Mapping

import torch.fx
from torch.export import ExportedProgram


def rename_placeholders(exported: ExportedProgram) -> Mapping[str, str]:
    """Renames, in place, every placeholder whose name a copy would not keep; returns ``{new name: user's name}``."""
    taken = {node.name for node in exported.graph.nodes}
    renamed: dict[str, str] = {}
    for node in exported.graph.nodes:
        if node.op == "placeholder" and (stable := _copied_name(node.name)) != node.name:
            while stable in taken:
                stable = f"{stable}_"
            taken.add(stable)
            renamed[stable] = node.name
            _rename(exported, node, stable)
    return renamed


def _copied_name(name: str) -> str:
    graph = torch.fx.Graph()
    return graph.placeholder(name).name


def _rename(exported: ExportedProgram, node: torch.fx.Node, name: str) -> None:
    old = node.name
    exported.graph_signature.replace_all_uses(old, name)
    for spec in exported.graph_signature.output_specs:
        if spec.target == old:
            spec.target = name
    node.name = node.target = name
