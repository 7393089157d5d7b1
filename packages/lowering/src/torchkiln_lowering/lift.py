"""Tensors that passes left in a module, as weights of the program: every tensor of a program is a placeholder."""

from __future__ import annotations

import dataclasses
import operator

import torch
import torch.fx

from torchkiln_core.program import InputKind, Program, ProgramInput


def lift_attributes(program: Program) -> Program:
    """A program whose graph reads no tensor attribute; placeholders for them stand behind the others."""
    graph = program.module.graph
    lifted: dict[str, torch.fx.Node] = {}
    weights: dict[str, torch.Tensor] = {}
    placeholders = graph.find_nodes(op="placeholder")
    last = placeholders[-1] if placeholders else None
    for node in graph.find_nodes(op="get_attr"):
        target = str(node.target)
        tensor = operator.attrgetter(target)(program.module)
        if not isinstance(tensor, torch.Tensor):
            continue
        if target not in lifted:
            with graph.inserting_after(last) if last is not None else graph.inserting_before(next(iter(graph.nodes))):
                last = graph.placeholder(target.replace(".", "_").lstrip("_"))
            last.meta = dict(node.meta)
            lifted[target], weights[last.name] = last, tensor
        node.replace_all_uses_with(lifted[target])
        graph.erase_node(node)
    if not lifted:
        return program
    inputs = tuple(ProgramInput(node.name, InputKind.WEIGHT, node.name) for node in lifted.values())
    return dataclasses.replace(program, inputs=(*program.inputs, *inputs), weights={**program.weights, **weights})
