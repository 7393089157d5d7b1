"""Low precision by rule: products in a half dtype, everything that loses digits in float32."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

from torchkiln_core.errors import LoweringError
from torchkiln_core.operators import OperatorSet
from torchkiln_core.options import LoweringOptions
from torchkiln_core.program import InputKind, Program
from torchkiln_lowering.effects import is_view

aten = torch.ops.aten


_CALIBRATION_FIX = "calibrate ahead of time, with torchkiln.compile: torch.compile captures before weights and inputs are there"


def _overloads(names: str) -> frozenset[Callable[..., Any]]:
    packets = (getattr(aten, name) for name in names.split())
    return frozenset(getattr(packet, overload) for packet in packets for overload in packet.overloads())


PRODUCTS = _overloads(
    "linear matmul mm bmm addmm baddbmm addbmm mv addmv dot einsum convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d scaled_dot_product_attention bilinear"
)
"""Run in the low dtype: long sums of products, which kernels add up in float32."""

FOLLOWERS = _overloads(
    "relu leaky_relu hardtanh clamp clamp_min clamp_max neg abs maximum minimum where cat stack add sub mul dropout max_pool2d max_pool3d "
    "max_pool1d constant_pad_nd pad clone contiguous reshape flatten repeat roll flip index_select masked_fill tril triu"
)
"""Run in the dtype of what they read: low where every tensor that they read is the result of a product. All else runs in float32:
reductions, norms, softmax, exp, log, pow, and operators that are not known here."""


def autocast(options: LoweringOptions, program: Program) -> Callable[[torch.fx.GraphModule], bool]:
    """The pass for a program, with the user's exclusions and what was measured on calibration inputs.

    Raises:
        LoweringError: Calibration inputs that do not fit the program.
        ValueError: An entry of ``autocast_excluded_ops`` is no operator.
    """
    operators = OperatorSet("autocast_excluded_ops", options.autocast_excluded_ops)
    large = _large_outputs(options, program)

    def excluded(node: torch.fx.Node) -> bool:
        named = any(fnmatch.fnmatchcase(node.name, pattern) for pattern in options.autocast_excluded_nodes)
        return named or node.name in large or node.target in operators

    return lambda module: cast_products(module, options.autocast or torch.float16, excluded)


def cast_products(module: torch.fx.GraphModule, dtype: torch.dtype, excluded: Callable[[torch.fx.Node], bool]) -> bool:
    """Runs products, and what follows them, in ``dtype``; every other call reads float32 as before."""
    graph = module.graph
    # float32 node to the same value in the low dtype.
    low: dict[torch.fx.Node, torch.fx.Node] = {}
    made: set[torch.fx.Node] = set()
    for node in list(graph.nodes):
        if not _is_single(node) or excluded(node):
            continue
        sources = [source for source in node.all_input_nodes if _is_float32(source)]
        follows = (node.target in FOLLOWERS or is_view(node)) and all(source in made for source in sources)
        if not sources or not (node.target in PRODUCTS or follows) or not _is_uniform(node):
            continue
        for source in sources:
            if source not in low:
                with graph.inserting_before(node):
                    low[source] = graph.call_function(aten._to_copy.default, (source,), {"dtype": dtype})
        with graph.inserting_before(node):
            args, kwargs = map_arg((node.args, node.kwargs), lambda source: low.get(source, source))
            new = graph.call_function(node.target, args, kwargs)
            wide = graph.call_function(aten._to_copy.default, (new,), {"dtype": torch.float32})
        new.meta = {key: item for key, item in node.meta.items() if key not in ("val", "tensor_meta")}
        wide.meta = dict(node.meta)
        node.replace_all_uses_with(wide)
        graph.erase_node(node)
        low[wide] = new
        made.add(wide)
    return bool(made)


def _is_single(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, OpOverload) and _is_float32(node)


def _is_float32(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _is_uniform(node: torch.fx.Node) -> bool:
    """No half or double among the arguments, and no dtype by name: such calls say themselves in which dtype they run."""
    values = [source.meta.get("val") for source in node.all_input_nodes]
    floats = {value.dtype for value in values if isinstance(value, torch.Tensor) and value.dtype.is_floating_point}
    return floats <= {torch.float32} and not isinstance(node.kwargs.get("dtype"), torch.dtype)


def _large_outputs(options: LoweringOptions, program: Program) -> frozenset[str]:
    """Names of the calls whose results leave the limit on some calibration input."""
    large: set[str] = set()
    for inputs in options.autocast_calibration:
        _Meter(program.module, options.autocast_max_output, large).measure(_flat(program, inputs))
    return frozenset(large)


def _flat(program: Program, inputs: Sequence[Any]) -> list[Any]:
    count = len(program.user_inputs)
    if len(inputs) != count:
        raise LoweringError(
            f"autocast_calibration: expected {count} flat inputs ({', '.join(program.user_inputs)}), got {len(inputs)}",
            fix=_CALIBRATION_FIX,
        )
    missing = [item.name for item in program.inputs if item.kind is InputKind.WEIGHT and item.name not in program.weights]
    if missing:
        raise LoweringError(f"autocast_calibration: the weights have no values yet: {', '.join(missing)}", fix=_CALIBRATION_FIX)
    given = iter(inputs)
    weights: Mapping[str, torch.Tensor] = program.weights
    return [weights[item.name] if item.kind is InputKind.WEIGHT else next(given) for item in program.inputs]


class _Meter(torch.fx.Interpreter):
    """Runs a graph and notes which results have elements beyond a limit."""

    def __init__(self, module: torch.fx.GraphModule, limit: float, large: set[str]) -> None:
        super().__init__(module)
        self._limit = limit
        self._large = large

    def measure(self, values: list[Any]) -> None:
        """Runs on flat inputs, weights included.

        Raises:
            LoweringError: The graph does not run on them.
        """
        try:
            with torch.no_grad():
                self.run(*values)
        except (RuntimeError, TypeError, ValueError) as error:
            raise LoweringError(f"autocast_calibration: the program does not run on these inputs: {error}") from error

    def run_node(self, n: torch.fx.Node) -> Any:
        """As in the base class; looks at the result."""
        value = super().run_node(n)
        # All must be at most the limit, so that NaN counts as beyond it.
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not bool((value.abs() <= self._limit).all()):
            self._large.add(n.name)
        return value
