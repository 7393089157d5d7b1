"""Tracing one decomposition of one call, under the program's own fake mode and without new guards."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
import torch.fx.experimental._config
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.convert_frame import compile_lock
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_leaves

from torchkiln_core.call import source_of
from torchkiln_core.errors import LoweringError
from torchkiln_core.size import size_of, sizes_of
from torchkiln_lowering.decompositions.table import Decomposition
from torchkiln_lowering.effects import is_random

_log = logging.getLogger("torchkiln.lowering")


class _NotTraceable(RuntimeError):
    """The decomposition gives a graph that the program cannot take in."""


@contextlib.contextmanager
def without_new_guards(mode: FakeTensorMode) -> Iterator[None]:
    """Enters the fake mode; anything that would guard on, or specialise, a symbolic size raises."""
    shapes = mode.shape_env
    with contextlib.ExitStack() as stack:
        if shapes is not None:
            stack.enter_context(shapes.ignore_fresh_unbacked_symbols())
            stack.enter_context(shapes.error_on_new_guards() if hasattr(shapes, "error_on_new_guards") else _refusing_guards(shapes))
        # Checks that have a safe answer for undecided sizes (the backend of a convolution) take it instead of guarding.
        # (`patch` is put into the module by torch's config machinery, where type checkers do not see it.)
        stack.enter_context(torch.fx.experimental._config.patch(backed_size_oblivious=True))  # type: ignore[attr-defined]
        stack.enter_context(torch.no_grad())
        stack.enter_context(mode)
        yield


@contextlib.contextmanager
def _refusing_guards(shapes: ShapeEnv) -> Iterator[None]:
    """``error_on_new_guards`` for a torch without it: the hook that runs ahead of every new guard raises."""

    def refuse(expression: object, value: object) -> None:
        raise _NotTraceable(f"it would guard on {expression} == {value}")

    shapes.__dict__["_check_frozen"] = refuse
    try:
        yield
    finally:
        del shapes.__dict__["_check_frozen"]


class CallTracer:
    """Traces decompositions into small graphs, one placeholder per distinct argument node. Equal calls are traced once."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._done: dict[Any, torch.fx.GraphModule | None] = {}

    def trace(self, rule: Decomposition, node: torch.fx.Node) -> torch.fx.GraphModule | None:
        """The decomposition of a call, flat and functional, or ``None`` when torchkiln's or PyTorch's cannot be traced; a log says why.

        Raises:
            LoweringError: One of the user's decompositions fails.
        """
        key = (rule.function, rule.origin, signature_of(node))
        if key not in self._done:
            self._done[key] = self._attempt(rule, node)
        return self._done[key]

    def _attempt(self, rule: Decomposition, node: torch.fx.Node) -> torch.fx.GraphModule | None:
        try:
            return self._traced(rule, node)
        except Exception as error:
            if rule.origin == "user":
                raise LoweringError(
                    f"the decomposition {getattr(rule.function, '__name__', rule.function)} of {node.target} failed: {error}",
                    node=node.name,
                    where=source_of(node),
                    fix=f"correct it, or leave the operator to PyTorch with Decompositions.without({node.target})",
                ) from error
            _log.info("%s (%s) keeps its form: its %s decomposition cannot be traced: %s", node.target, node.name, rule.origin, error)
            return None

    def _traced(self, rule: Decomposition, node: torch.fx.Node) -> torch.fx.GraphModule:
        sources = list(node.all_input_nodes)

        def run(*values: Any) -> Any:
            given = dict(zip(sources, values, strict=True))
            args, kwargs = map_arg((node.args, node.kwargs), lambda source: given[source])
            result = rule.function(*args, **kwargs)
            # PyTorch's references return named tuples, whose constructor would be traced as a call.
            return tuple(result) if isinstance(result, (tuple, list)) else result

        module = self._record(run, sources, composites=rule.origin != "composite")
        if _mutates(module.graph):
            module = self._record(dispatch_functionalize(run), sources, composites=False)
        _inline_constants(module, self._mode)
        _correct(module.graph, self._mode)
        _check(module.graph)
        return module

    def _record(self, run: Any, sources: list[torch.fx.Node], *, composites: bool) -> torch.fx.GraphModule:
        # FX patches the whole process while it traces; torch.compile holds the same lock.
        with compile_lock, without_new_guards(self._mode), enable_python_dispatcher():
            module = make_fx(run, pre_dispatch=composites)(*[_fresh(source.meta["val"]) for source in sources])
        module.graph.eliminate_dead_code()
        return module


def _fresh(value: Any) -> Any:
    """A value with an identity of its own: the tracer tells arguments apart by identity, and two nodes may share one fake tensor."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def signature_of(node: torch.fx.Node) -> Any:
    """What a call computes, as a key: equal for calls whose results have equal metadata, and whose traces are equal."""
    sources = {source: index for index, source in enumerate(node.all_input_nodes)}
    leaves, spec = tree_flatten((list(node.args), dict(node.kwargs)))
    parts = tuple(("node", sources[leaf]) if isinstance(leaf, torch.fx.Node) else (type(leaf), repr(leaf)) for leaf in leaves)
    return str(node.target), str(spec), parts, tuple(_kind(source.meta["val"]) for source in sources)


def _kind(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        if value.layout != torch.strided or value.constant is not None:
            return object()
        return value.dtype, value.device, sizes_of(value.shape), sizes_of(value.stride()), value.is_conj(), value.is_neg()
    if isinstance(value, torch.SymInt):
        return torch.SymInt, size_of(value)
    # Equal to nothing else: such calls are traced one by one.
    return object()


def _mutates(graph: torch.fx.Graph) -> bool:
    return any(isinstance(node.target, OpOverload) and node.target._schema.is_mutable for node in graph.nodes)


def _inline_constants(module: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    """Writes one-element tensors that the decomposition made as ``full``; a program holds other constants as weights only."""
    for node in list(module.graph.find_nodes(op="get_attr")):
        constant = getattr(module, str(node.target))
        if not isinstance(constant, torch.Tensor) or isinstance(constant, FakeTensor) or constant.numel() != 1:
            raise _NotTraceable(f"it makes a constant {node.target} that is no scalar")
        args = list(constant.shape), constant.item()
        settings: dict[str, Any] = {"dtype": constant.dtype, "device": constant.device, "pin_memory": False}
        with module.graph.inserting_before(node):
            full = module.graph.call_function(torch.ops.aten.full.default, args, settings)
        with without_new_guards(mode):
            full.meta["val"] = torch.ops.aten.full.default(*args, **settings)
        node.replace_all_uses_with(full)
        module.graph.erase_node(node)


def _correct(graph: torch.fx.Graph, mode: FakeTensorMode) -> None:
    """Gives ``prims.signbit`` the dtype that it returns: PyTorch's own metadata says that of its argument."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.prims.signbit.default):
        with without_new_guards(mode):
            node.meta["val"] = torch.ops.aten.signbit.default(_fresh(node.args[0].meta["val"]))


def _check(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            raise _NotTraceable(f"it leaves a {node.op} node")
        if is_random(node):
            raise _NotTraceable(f"it draws random numbers with {node.target}")
        if node.op == "call_function" and "val" not in node.meta:
            raise _NotTraceable(f"{node.target} has no metadata")
        if node.meta.get("unbacked_bindings"):
            raise _NotTraceable(f"{node.target} makes a size that depends on data")
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            raise _NotTraceable(f"{node.target} writes to its argument")
    if any(not isinstance(leaf, (torch.fx.Node, type(None))) for leaf in tree_leaves(graph.output_node().args)):
        raise _NotTraceable("it returns a constant")
