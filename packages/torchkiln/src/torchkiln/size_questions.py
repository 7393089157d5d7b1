"""Export of models of which PyTorch asks more about sizes than an engine wants to know."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._sympy.functions import Max, Min
from torch.utils._sympy.symbol import SymT, symbol_is_type

from torchkiln.ranges import shape_env_of


def export_asking_less(export: Callable[..., ExportedProgram]) -> ExportedProgram:
    """``export()``, or where PyTorch's questions refuse sizes that the user declared, an export with fewer of them.

    Two kinds of questions are of no matter to an engine. On a GPU PyTorch picks one of its attention kernels; the call stays one call of
    the graph in any case, but a kernel also decides the strides of its result, so the choice is made where that does no harm. And torch
    compares strides by formulas that it cannot decide for all sizes, such as ``min(8 * s, 32 * s) == 8 * s``, though they always hold.

    Args:
        export: ``torch.export.export`` of a model, which takes further options of it.

    Raises:
        UserError: Some question that remains is not known to have the same answer at all declared sizes; that of the first attempt.
    """
    try:
        return export()
    except UserError as error:
        if error.error_type is not UserErrorType.CONSTRAINT_VIOLATION:
            raise
        refusal = error
    try:
        with sdpa_kernel(SDPBackend.MATH):
            exported = export(prefer_deferred_runtime_asserts_over_guards=True)
    except Exception as error:
        # The user can do something about the refusal alone.
        raise refusal from error
    if not all(map(_always_holds, _asserted_of_sizes(exported))):
        raise refusal
    return exported


def _asserted_of_sizes(exported: ExportedProgram) -> list[sympy.Basic]:
    """What was put off of sizes of inputs alone; other assertions are part of any export."""
    asserts = [node for node in exported.graph.nodes if node.target is torch.ops.aten._assert_scalar.default]
    values = [node.args[0].meta["val"] if isinstance(node.args[0], torch.fx.Node) else node.args[0] for node in asserts]
    found = [value.node.expr for value in values if isinstance(value, torch.SymBool)]
    if (environment := shape_env_of(exported.graph_module)) is not None:
        # Not all of them become calls of the graph. Sizes that were declared to be one have symbols of their own in them.
        found += [environment.replace(item.expr) for items in environment.deferred_runtime_asserts.values() for item in items]
    return [item for item in found if all(symbol_is_type(symbol, SymT.SIZE) for symbol in free_symbols(item))]


def _always_holds(asserted: sympy.Basic) -> bool:
    """Whether sympy, whose own minimum uses that sizes are positive, finds a relation true for all sizes."""
    return asserted.replace(Min, sympy.Min).replace(Max, sympy.Max) is sympy.true
