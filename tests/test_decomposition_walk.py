"""Every operator for which the installed torch ships a decomposition, and which no converter takes, is decomposed to those that have one.

Calls come from PyTorch's own database of operators; what it does not call is called here.
"""

from __future__ import annotations

import collections
import gc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._decomp
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torchkiln_converters import default_registry
from torchkiln_core.call import OpCall
from torchkiln_lowering import AtenLowering
from torchkiln_testing import OpCase, trace_call

aten = torch.ops.aten
Call = tuple[tuple[Any, ...], dict[str, Any]]

_SPECIAL = "a special function that no layer of TensorRT computes"
_BITS = "TensorRT has no layer that works on bits of a number"
_RANDOM = "random numbers are PyTorch's own"
_STRIDES = "its meaning depends on strides that an engine's tensors need not have"
KEPT: dict[str, str] = {
    **dict.fromkeys(("digamma", "erfinv", "i0", "lgamma", "igamma", "igammac", "mvlgamma"), _SPECIAL),
    **{f"special_{name}": _SPECIAL for name in ("bessel_j0", "bessel_j1", "erfcx", "i0e", "i1", "i1e", "log_ndtr", "ndtri", "zeta")},
    "special_spherical_bessel_j0": _SPECIAL,
    **dict.fromkeys(("frexp", "nextafter", "gcd", "lcm"), _BITS),
    **dict.fromkeys(("bernoulli", "normal", "randn", "uniform", "_fused_dropout"), _RANDOM),
    "as_strided_scatter": _STRIDES,
    "complex": "complex numbers run in PyTorch",
    "polar": "complex numbers run in PyTorch",
    "_unsafe_masked_index_put_accumulate": "a backward operator",
}
"""Operators that run in PyTorch although it ships a decomposition, and why."""


def _calls() -> dict[OpOverload[..., Any], list[Call]]:
    from torch.testing._internal.common_methods_invocations import op_db

    recorder = _Recorder()
    for info in op_db:
        if info.name.startswith("jiterator"):
            # Kernels that are compiled for a GPU.
            continue
        if not info.supports_dtype(torch.float32, "cpu"):
            dtype = torch.int64 if info.supports_dtype(torch.int64, "cpu") else None
        else:
            dtype = torch.float32
        for sample in _first(info.sample_inputs("cpu", dtype), 2) if dtype is not None else ():
            with recorder, torch.no_grad():
                try:
                    info(sample.input, *sample.args, **sample.kwargs)
                except (RuntimeError, NotImplementedError, ValueError, TypeError):
                    # An entry that needs a library that is not installed here tells nothing of decompositions.
                    continue
    # Generators of samples that nobody asked for restore modes of torch when they go, which must not happen while a program is traced.
    gc.collect()
    for target, call in EXTRA:
        recorder.calls[target].append(call)
    return recorder.calls


def _first(items: Any, count: int) -> Iterator[Any]:
    for _, item in zip(range(count), items, strict=False):
        yield item


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[OpOverload[..., Any], list[Call]] = collections.defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if len(self.calls[func]) < 2 and all(item.layout == torch.strided and 0 < item.numel() < 40000 and item.dim() for item in tensors):
            self.calls[func].append(pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)))
        return func(*args, **kwargs)


X = torch.linspace(-1, 1, 12).view(3, 4)
ZERO = torch.zeros(1, 3, 2)
EXTRA: tuple[tuple[OpOverload[..., Any], Call], ...] = (
    (aten.all.default, ((X,), {})),
    (aten.squeeze.default, ((X[None],), {})),
    (aten.std_mean.default, ((X,), {})),
    (aten.std_mean.dim, ((X, [1]), {})),
    (aten.var_mean.dim, ((X, [1]), {})),
    (aten.isin.Tensor_Scalar, ((X, 1.0), {})),
    (aten.isin.Scalar_Tensor, ((1.0, X), {})),
    (aten.affine_grid_generator.default, ((X[None, :2, :3].contiguous(), [1, 1, 4, 4], False), {})),
    (aten.col2im.default, ((torch.ones(1, 12, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]), {})),
    (aten._native_batch_norm_legit.no_stats, ((X[None], None, None, True, 0.1, 1e-5), {})),
    (aten._native_batch_norm_legit_no_training.default, ((X[None], None, None, torch.ones(3), torch.ones(3), 0.1, 1e-5), {})),
    (aten.hann_window.default, ((8,), {})),
    (aten.hann_window.periodic, ((8, False), {})),
    (aten.native_dropout.default, ((X, 0.5, False), {})),
    (aten._fused_rms_norm.default, ((X, [4], None, 1e-5), {})),
    (aten.lerp.Tensor, ((X, X, X), {})),
    (aten.bucketize.Tensor, ((X, torch.tensor([0.0, 1.0])), {})),
    (aten.index_reduce.default, ((X, 0, torch.tensor([0, 2]), X[:2], "amax"), {})),
    (aten.select_scatter.default, ((X, X[0], 0, -1), {})),
    (aten._weight_norm_interface.default, ((X, X[:, :1]), {})),
    (aten.pairwise_distance.default, ((X, X + 1), {})),
    (aten.selu.default, ((X,), {})),
    (aten.special_ndtr.default, ((X,), {})),
    (aten.lstm.input, ((X[None], [ZERO, ZERO], [torch.ones(8, 4), torch.ones(8, 2)], False, 1, 0.0, False, False, False), {})),
    (aten.gru.input, ((X[None], ZERO, [torch.ones(6, 4), torch.ones(6, 2)], False, 1, 0.0, False, False, False), {})),
    (aten.lstm_cell.default, ((X, [torch.zeros(3, 2), torch.zeros(3, 2)], torch.ones(8, 4), torch.ones(8, 2)), {})),
)  # fmt: skip
NAMED = """
all.default squeeze.default glu.default isin.Tensor_Tensor std_mean.correction channel_shuffle.default take.default block_diag.default
affine_grid_generator.default col2im.default _safe_softmax.default hann_window.default expand_copy.default permute_copy.default
scatter_add.default scatter_reduce.two index_reduce.default select_scatter.default
""".split()


@pytest.fixture(scope="module")
def calls() -> dict[OpOverload[..., Any], list[Call]]:
    # PyTorch's database reads the source of every frame on the stack for each sample; the stack of a new thread is short.
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as thread:
        # It warns of what it deprecates.
        warnings.simplefilter("ignore")
        return thread.submit(_calls).result()


def _walked(calls: dict[OpOverload[..., Any], list[Call]]) -> list[OpOverload[..., Any]]:
    shipped = [target for target in torch._decomp.decomposition_table if isinstance(target, OpOverload) and not target._schema.is_mutable]
    return [target for target in {**dict.fromkeys(shipped), **dict.fromkeys(target for target, _ in EXTRA)} if calls.get(target)]


def _leftovers(target: OpOverload[..., Any], call: Call) -> list[str]:
    """Operators that no converter takes once the call has been lowered."""
    registry = default_registry()
    program = trace_call(OpCase(target, *call, results=(0,))).program
    output = program.module.graph.output_node()
    # The result is read, not returned: what a caller gets must be a tensor of its own, which constants are not.
    (value,) = output.args[0]
    with program.module.graph.inserting_before(output):
        read = program.module.graph.call_function(aten.eq.Tensor, (value, value))
    read.meta["val"] = torch.empty_like(value.meta["val"], dtype=torch.bool)
    output.args = ((read,),)
    lowered = AtenLowering().lower(program, registry)
    nodes = [node for node in lowered.module.graph.nodes if isinstance(node.target, OpOverload) and node.target is not aten.eq.Tensor]
    return [str(node.target) for node in nodes if registry.reject(OpCall.from_node(node)) is not None]


def test_the_table_of_torch(calls: dict[OpOverload[..., Any], list[Call]]) -> None:
    registry = default_registry()
    walked = [target for target in _walked(calls) if target not in registry.targets and "backward" not in str(target)]
    left: dict[str, list[str]] = {}
    for target in walked:
        found = [_leftovers(target, call) for call in calls[target]]
        if all(found):
            left[str(target).split(".")[1]] = found[0]
    assert len(walked) > 100
    unexplained = {name: found for name, found in left.items() if name not in KEPT}
    assert unexplained == {}
    stale = {name for name in KEPT if name not in left and any(str(target).split(".")[1] == name for target in walked)}
    assert stale == set()


@pytest.mark.parametrize("name", NAMED)
def test_named_operators(name: str, calls: dict[OpOverload[..., Any], list[Call]]) -> None:
    packet, overload = name.split(".")
    target: Callable[..., Any] = getattr(getattr(aten, packet), overload)
    assert [] in [_leftovers(target, call) for call in calls[target]]
