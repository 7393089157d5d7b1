"""How a call reaches a flat graph and comes back: arguments, constants, mutation, aliases and output structure as in eager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree
from torchkiln_core import ExportError

from torchkiln.aliases import Epilogue, OutputRef, split_aliases
from torchkiln.checks import ArgumentCheck, check_of
from torchkiln.ranges import ranges_of


@dataclass(frozen=True, slots=True)
class CallingConvention:
    """The border between the user's call and the flat graph.

    Attributes:
        in_spec: Structure of ``(args, kwargs)``.
        out_spec: Structure of the result.
        parameter_names: Names of the model's positional parameters, to accept arguments by another form than at compile time.
        checks: One per flat argument: what it must be.
        flat_inputs: Placeholder names of the flat arguments that the graph takes, in order.
        flat_positions: Their positions among the flat arguments.
        mutated_buffers: Qualified names of the buffers that the graph updates, in the order of their placeholders.
        copies: For each leading result of the graph, where to copy it: ``("buffer", index)`` or ``("input", flat position)``.
        outputs: For each flat output, where it comes from.
        epilogue: Graph of view operators that re-creates outputs which alias inputs, buffers or other outputs.
    """

    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    parameter_names: tuple[str, ...] | None
    checks: tuple[ArgumentCheck, ...]
    flat_inputs: tuple[str, ...]
    flat_positions: tuple[int, ...]
    mutated_buffers: tuple[str, ...]
    buffer_inputs: tuple[str, ...]
    copies: tuple[tuple[str, int], ...]
    outputs: tuple[OutputRef, ...]
    epilogue: Epilogue | None = field(default=None)

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Flat arguments in the order of compile time, checked.

        Raises:
            TypeError: Other arguments than at compile time.
            ValueError: A constant argument, dtype, device or rank other than at compile time.
            ShapeOutOfProfile: A size outside what was compiled.
        """
        flat, spec = pytree.tree_flatten((args, dict(kwargs)))
        if spec != self.in_spec:
            flat = self._rearrange(args, kwargs)
        symbols: dict[str, int] = {}
        for check, value in zip(self.checks, flat, strict=True):
            check(value, symbols)
        return flat

    def _rearrange(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        args_spec, kwargs_spec = self.in_spec.children()
        named = dict(zip(self.parameter_names or (), args, strict=False)) | dict(kwargs)
        positional, keywords = args_spec.num_children, list(kwargs_spec.context or ())
        names = list(self.parameter_names or ())[:positional]
        if self.parameter_names is not None and len(args) <= len(self.parameter_names) and set(named) == {*names, *keywords}:
            arranged = tuple(named[name] for name in names), {name: named[name] for name in keywords}
        else:
            arranged = args, {name: kwargs[name] for name in keywords if name in kwargs} | dict(kwargs)
        flat, spec = pytree.tree_flatten(arranged)
        if spec != self.in_spec:
            raise TypeError(
                f"arguments: expected the structure of compile time, {pytree.treespec_pprint(self.in_spec)}, "
                f"got {pytree.treespec_pprint(spec)}; compile again with arguments of this structure"
            )
        return flat

    def unflatten(self, flat_args: Sequence[Any], state: Sequence[torch.Tensor], results: Sequence[Any]) -> Any:
        """Applies mutations and gives the result the structure that eager gives it."""
        for (kind, index), value in zip(self.copies, results, strict=False):
            target = state[index] if kind == "buffer" else flat_args[index]
            target.copy_(value)
        sources = {"argument": flat_args, "buffer": state, "result": results}
        replayed = () if self.epilogue is None else self.epilogue.run(sources)
        flat = [ref.value if ref.kind == "constant" else (replayed if ref.kind == "alias" else sources[ref.kind])[ref.index] for ref in self.outputs]
        return pytree.tree_unflatten(flat, self.out_spec)


def read_convention(
    exported: ExportedProgram, parameter_names: Sequence[str] | None, shown_names: Mapping[str, str]
) -> tuple[CallingConvention, torch.fx.GraphModule]:
    """The convention of a functional exported program, and its graph, changed in place to return what the convention needs.

    Args:
        exported: Functional.
        parameter_names: Names of the model's positional parameters.
        shown_names: What the user calls a placeholder, where that is not its name.

    Raises:
        ExportError: An argument or result that is no tensor, number, string or ``None``.
    """
    signature = exported.graph_signature
    module = exported.graph_module
    placeholders = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    dims = ranges_of(module, exported.range_constraints)
    user_specs = [spec for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    checks = tuple(
        check_of(shown_names.get(name := _argument_name(spec), name), spec, placeholders.get(name), dims) for spec in user_specs
    )
    for spec, check in zip(user_specs, checks, strict=True):
        if check.is_constant and (node := placeholders.pop(_argument_name(spec), None)) is not None:
            if node.users:
                raise ExportError(f"argument {node.name}: a value of type {type(node.meta.get('val')).__name__} cannot enter a graph")
            module.graph.erase_node(node)
    positions = tuple(index for index, check in enumerate(checks) if not check.is_constant)
    names = tuple(_argument_name(user_specs[index]) for index in positions)
    buffer_names = {str(spec.target): _argument_name(spec) for spec in signature.input_specs if spec.kind is InputKind.BUFFER}
    mutated = [
        str(spec.target) for spec in signature.output_specs if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    ]
    mutated_set = set(mutated)
    mutated = [target for target in buffer_names if target in mutated_set]
    if len(mutated) != len(mutated_set):
        raise ExportError(f"parameters that the model changes in its forward ({', '.join(sorted(mutated_set - set(mutated)))}) are not supported")
    copies: list[tuple[str, int]] = []
    position_of = dict(zip(names, positions, strict=True))
    for spec in signature.output_specs:
        match spec.kind:
            case OutputKind.BUFFER_MUTATION:
                copies.append(("buffer", mutated.index(str(spec.target))))
            case OutputKind.USER_INPUT_MUTATION:
                copies.append(("input", position_of[str(spec.target)]))
            case OutputKind.USER_OUTPUT:
                if not isinstance(spec.arg, TensorArgument | ConstantArgument) and not hasattr(spec.arg, "name"):
                    raise ExportError(f"output: {type(spec.arg).__name__} is not supported")
            case _:
                raise ExportError(f"output: {spec.kind.name.lower()} is not supported")
    live = {name: ("argument", position) for name, position in position_of.items()}
    live |= {buffer_names[target]: ("buffer", index) for index, target in enumerate(mutated)}
    outputs, epilogue = split_aliases(module, copies, live)
    module.recompile()
    in_spec, out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
    if in_spec is None or out_spec is None:
        raise ExportError("the exported program has no calling convention")
    convention = CallingConvention(
        in_spec=in_spec,
        out_spec=out_spec,
        parameter_names=None if parameter_names is None else tuple(parameter_names),
        checks=checks,
        flat_inputs=names,
        flat_positions=positions,
        mutated_buffers=tuple(mutated),
        buffer_inputs=tuple(buffer_names[target] for target in mutated),
        copies=tuple(copies),
        outputs=outputs,
        epilogue=epilogue,
    )
    return convention, module


def _argument_name(spec: Any) -> str:
    return str(getattr(spec.arg, "name", ""))
