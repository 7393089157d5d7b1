"""Programs and oracles for tests."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.export.graph_signature import InputKind as Kind

from torchkiln_core.call import OpCall
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_core.rejection import Rejection
from torchkiln_core.spec import DimRange

aten = torch.ops.aten

_NAMES = """
add.Tensor sub.Tensor mul.Tensor div.Tensor eq.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor slice.Tensor
add.Scalar sub.Scalar mul.Scalar div.Scalar eq.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar
exp.default log.default rsqrt.default sqrt.default abs.default neg.default atanh.default tanh.default erf.default relu.default
amax.default amin.default maximum.default mm.default bmm.default addmm.default full.default view.default expand.default permute.default
unsqueeze.default clone.default _to_copy.default logical_and.default cat.default convolution.default arange.default sigmoid.default
mean.dim sum.dim_IntList where.self squeeze.dims squeeze.dim select.int pow.Tensor_Scalar pow.Scalar minimum.default logical_or.default
"""
ELEMENTARY = frozenset(operator.attrgetter(name)(aten) for name in _NAMES.split())
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Oracle:
    """Accepts calls of some operators whose floating results are of some dtypes."""

    def __init__(self, *targets: Callable[..., Any], base: frozenset[Any] = ELEMENTARY, dtypes: Any = FLOATS) -> None:
        self.targets: frozenset[Callable[..., Any]] = base | frozenset(targets)
        self._dtypes = dtypes

    def reject(self, call: OpCall) -> Rejection | None:
        if call.target not in self.targets:
            return Rejection.of(call, "no-converter", "no converter")
        for value in (*call.outputs, *(source.meta["val"] for source in call.node.all_input_nodes)):
            if isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.dtype not in self._dtypes:
                return Rejection.of(call, "dtype", f"got {value.dtype}")
        return None


def capture(model: Any, args: tuple[Any, ...], dynamic_shapes: Any = None) -> Program:
    """A program by torch.export with composite operators decomposed."""
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    return from_exported(torch.export.export(module.eval(), args, dynamic_shapes=dynamic_shapes).run_decompositions({}))


def whole(model: Any, args: tuple[Any, ...], dynamic_shapes: Any = None) -> Program:
    """A program by torch.export with every composite operator whole."""
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    return from_exported(torch.export.export(module.eval(), args, dynamic_shapes=dynamic_shapes))


class _Function(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def from_exported(exported: torch.export.ExportedProgram) -> Program:
    inputs, weights = [], {}
    state = {**exported.state_dict, **exported.constants}
    for spec in exported.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is Kind.USER_INPUT:
            inputs.append(ProgramInput(name, InputKind.USER))
        else:
            inputs.append(ProgramInput(name, InputKind.WEIGHT, spec.target))
            weights[name] = state[spec.target]
    dims = {}
    for symbol, limits in exported.range_constraints.items():
        low = int(limits.lower)
        dims[str(symbol)] = DimRange(str(symbol), low, max(3, low), int(min(limits.upper, 1000)))
    return Program(exported.graph_module, tuple(inputs), weights, dims)


def targets(program: Program) -> list[Any]:
    return [node.target for node in program.module.graph.nodes if node.op == "call_function"]


def run(program: Program, *args: Any) -> tuple[Any, ...]:
    """Runs a program on user inputs."""
    given = iter(args)
    values = [program.weights[item.name] if item.kind is InputKind.WEIGHT else next(given) for item in program.inputs]
    with torch.no_grad():
        return tuple(torch.fx.Interpreter(program.module).run(*values))


def guard_state(program: Program) -> tuple[int, ...]:
    """Counts that grow when symbolic sizes are guarded on or specialised."""
    for node in program.module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.fake_mode.shape_env is not None:
            env = value.fake_mode.shape_env
            return len(env.guards), len(env.replacements), len(env.divisible), env.num_deferred_runtime_asserts
    return ()
