"""How a call reaches a flat graph and comes back: arguments, constants, mutation, aliases and output structure as in eager."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputKind
from torch.utils import _pytree as pytree

from torchkiln.aliases import Epilogue, LiveSource, OutputRef, assemble, only_results, split_aliases
from torchkiln.checks import ArgumentCheck, ArgumentChecks, check_of
from torchkiln.overlaps import first_overlap
from torchkiln.size_guards import SizeGuard, guards_of
from torchkiln.small_sizes import small_size_guards
from torchkiln.structure import Container, ContainerForm, LeafForm, rebuilt_order
from torchkiln_core import DimRange, ExportError


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
        guards: What must hold of the sizes of a call besides their ranges.
        form: The quick way to flatten.
        structure: The quick way to put a result together, where that is a container.
        only: Which results of the graph the flat outputs are, where they are nothing else.
        check: All ``checks`` at once.
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
    guards: tuple[SizeGuard, ...] = ()
    form: LeafForm | ContainerForm | None = field(init=False)
    structure: Container | None = field(init=False)
    only: tuple[int, ...] | None = field(init=False)
    check: ArgumentChecks = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", LeafForm.of(self.in_spec) or ContainerForm.of(self.in_spec))
        object.__setattr__(self, "structure", Container.of(self.out_spec) if len(self.outputs) == self.out_spec.num_leaves else None)
        object.__setattr__(self, "only", only_results(self.outputs))
        object.__setattr__(self, "check", ArgumentChecks(self.checks, self.guards))

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Flat arguments in the order of compile time, checked.

        Raises:
            TypeError: Other arguments than at compile time.
            ValueError: A constant argument, dtype, device or rank other than at compile time.
            ShapeOutOfProfile: A size outside what was compiled.
        """
        flat = self.arrange(args, kwargs)
        self.check(flat)
        return flat

    def arrange(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Flat arguments in the order of compile time, as they are.

        Raises:
            TypeError: Another structure than at compile time.
        """
        flat = None if self.form is None else self.form.flatten(args, kwargs)
        if flat is not None:
            return flat
        flat, spec = pytree.tree_flatten((args, dict(kwargs)))
        return flat if spec == self.in_spec else self._rearrange(args, kwargs)

    def check_memory(self, flat: Sequence[Any], state: Sequence[torch.Tensor]) -> None:
        """Refuses a changed argument that shares memory with another: eager shows the change in both, a functional graph does not.

        Raises:
            ValueError: Two arguments, or an argument and a changed buffer, overlap and the model changes one of them.
        """
        if not self.copies:
            return
        changed = {index for kind, index in self.copies if kind == "input"}
        named = [(self.checks[index].name, flat[index], index in changed) for index in self.flat_positions]
        named += [(name, tensor, True) for name, tensor in zip(self.mutated_buffers, state, strict=True)]
        found = first_overlap([item for item in named if isinstance(item[1], torch.Tensor)])
        if found is not None:
            raise ValueError(
                f"arguments {found[0]} and {found[1]}: expected no shared memory, since the model changes it, got tensors that overlap; "
                "pass a copy of one of them"
            )

    def _rearrange(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        args_spec, kwargs_spec = self.in_spec.children()
        by_position = dict(zip(self.parameter_names or (), args, strict=False))
        for name in by_position.keys() & kwargs.keys():
            raise TypeError(f"argument {name}: expected one value, got one by position and one by name")
        named = by_position | dict(kwargs)
        positional, keywords = args_spec.num_children, list(kwargs_spec.context or ())
        names = list(self.parameter_names or ())[:positional]
        if self.parameter_names is not None and len(args) <= len(self.parameter_names) and set(named) == {*names, *keywords}:
            arranged = tuple(named[name] for name in names), {name: named[name] for name in keywords}
        else:
            arranged = args, {name: kwargs[name] for name in keywords if name in kwargs} | dict(kwargs)
        try:
            # Unlike a comparison of structures, this takes dicts whose keys come in another order.
            return list(self.in_spec.flatten_up_to(arranged))
        except ValueError as error:
            raise TypeError(
                f"arguments: expected the structure of compile time, {pytree.treespec_pprint(self.in_spec)}, "
                f"got {pytree.treespec_pprint(pytree.tree_structure(arranged))}; compile again with arguments of this structure"
            ) from error

    def unflatten(self, flat_args: Sequence[Any], state: Sequence[torch.Tensor], results: Sequence[Any]) -> Any:
        """Applies mutations and gives the result the structure that eager gives it."""
        for (kind, index), value in zip(self.copies, results, strict=False):
            target = state[index] if kind == "buffer" else flat_args[index]
            target.copy_(value)
        if self.only is not None:
            flat = [results[index] for index in self.only]
        else:
            flat = assemble(self.outputs, self.epilogue, {"argument": flat_args, "buffer": state, "result": results})
        return pytree.tree_unflatten(flat, self.out_spec) if self.structure is None else self.structure.put_together(iter(flat))


def read_convention(
    exported: ExportedProgram,
    parameter_names: Sequence[str] | None,
    inputs: tuple[Mapping[str, str], Mapping[str, DimRange]],
    owners: Sequence[str | None] | None = None,
) -> tuple[CallingConvention, torch.fx.GraphModule]:
    """The convention of a functional exported program, and its graph, changed in place to return what the convention needs.

    Args:
        exported: Functional.
        parameter_names: Names of the model's positional parameters.
        inputs: What the user calls a placeholder, where that is not its name, and the range of every symbol.
        owners: For each result, the user's name of the placeholder whose memory it shares, if that is known.

    Raises:
        ExportError: An argument or result that is no tensor, number, string or ``None``.
    """
    module = exported.graph_module
    specs = [spec for spec in exported.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    shown_names, dims = inputs
    guards = (*guards_of(module, dims), *small_size_guards(module, dims))
    checks = _take_constants_out(module, specs, dims, shown_names)
    positions = tuple(index for index, check in enumerate(checks) if not check.is_constant)
    names = tuple(_argument_name(specs[index]) for index in positions)
    buffers = _mutated_buffers(exported.graph_signature)
    position_of = dict(zip(names, positions, strict=True))
    copies = _copies(exported.graph_signature, list(buffers), position_of)
    live: dict[str, LiveSource] = {name: ("argument", position) for name, position in position_of.items()}
    live |= {placeholder: ("buffer", index) for index, placeholder in enumerate(buffers.values())}
    user_names = {shown_names.get(name, name): source for name, source in live.items()}
    in_spec, out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
    if in_spec is None or out_spec is None:
        raise ExportError("the exported program has no calling convention")
    # The functional graph was traced from a model that puts its result together and takes it apart once more.
    order = rebuilt_order(out_spec)
    owned = None if owners is None else [None if owners[index] is None else user_names.get(str(owners[index])) for index in order]
    back: list[LiveSource] = [("buffer" if kind == "buffer" else "argument", index) for kind, index in copies]
    results, epilogue = split_aliases(module, back, live, owned)
    outputs = tuple(output for _, output in sorted(zip(order, results, strict=True), key=operator.itemgetter(0)))
    module.recompile()
    convention = CallingConvention(
        in_spec=in_spec,
        out_spec=out_spec,
        parameter_names=None if parameter_names is None else tuple(parameter_names),
        checks=checks,
        flat_inputs=names,
        flat_positions=positions,
        mutated_buffers=tuple(buffers),
        buffer_inputs=tuple(buffers.values()),
        copies=copies,
        outputs=outputs,
        epilogue=epilogue,
        guards=guards,
    )
    return convention, module


def _take_constants_out(
    module: torch.fx.GraphModule, specs: Sequence[InputSpec], dims: Mapping[str, DimRange], shown_names: Mapping[str, str]
) -> tuple[ArgumentCheck, ...]:
    """The check of each user input; placeholders of constants leave the graph.

    Raises:
        ExportError: The graph reads an argument that is neither a tensor nor a plain value.
    """
    placeholders = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    checks = []
    for spec in specs:
        name = _argument_name(spec)
        node = placeholders.get(name)
        check = check_of(shown_names.get(name, name), spec, node, dims)
        if check.is_constant and node is not None:
            if node.users:
                raise ExportError(f"argument {check.name}: a value of type {type(node.meta.get('val')).__name__} cannot enter a graph")
            module.graph.erase_node(node)
        checks.append(check)
    return tuple(checks)


def _mutated_buffers(signature: ExportGraphSignature) -> dict[str, str]:
    """Placeholder of each buffer that the graph updates, by qualified name, in the order of the placeholders.

    Raises:
        ExportError: The graph updates a parameter.
    """
    updated = {
        str(spec.target) for spec in signature.output_specs if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    }
    buffers = {
        str(spec.target): _argument_name(spec)
        for spec in signature.input_specs
        if spec.kind is InputKind.BUFFER and str(spec.target) in updated
    }
    others = sorted(updated - set(buffers))
    if others:
        raise ExportError(f"parameters {', '.join(others)}: the model changes them in its forward, which is not supported")
    return buffers


def _copies(signature: ExportGraphSignature, buffers: Sequence[str], position_of: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Where each leading output is copied.

    Raises:
        ExportError: An output that is neither a mutation nor a result.
    """
    copies: list[tuple[str, int]] = []
    for spec in signature.output_specs:
        match spec.kind:
            case OutputKind.BUFFER_MUTATION:
                copies.append(("buffer", buffers.index(str(spec.target))))
            case OutputKind.USER_INPUT_MUTATION:
                copies.append(("input", position_of[str(spec.target)]))
            case OutputKind.USER_OUTPUT if hasattr(spec.arg, "name"):
                continue
            case _:
                raise ExportError(f"output: {spec.kind.name.lower()} of type {type(spec.arg).__name__} is not supported")
    return tuple(copies)


def _argument_name(spec: InputSpec) -> str:
    return str(getattr(spec.arg, "name", ""))
