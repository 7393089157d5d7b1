"""Loads the tables of operator calls, and makes the converter and builder that the tests check them with."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchkiln_converters import ConverterRegistry, NetworkConverter, builtin_converters
from torchkiln_core import BuildOptions, Network
from torchkiln_core.stages import Engine
from torchkiln_testing import OpCase, trace_call

_REGISTRY = ConverterRegistry(builtin_converters())
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_aten = torch.ops.aten
_EAGER_HAS_FLOAT32_ONLY = frozenset(
    {
        *(_aten.avg_pool3d.default, _aten._adaptive_avg_pool3d.default),
        *(_aten.grid_sampler.default, _aten.grid_sampler_2d.default, _aten.grid_sampler_3d.default),
    }
)
"""Operators whose kernels for the CPU take no half dtype, or lose whole pixels by computing places in it."""


def _tables() -> Iterator[OpCase]:
    for path in sorted((Path(__file__).parent / "tables").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"converter_table_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield from module.CASES


def _over_dtypes(case: OpCase) -> Iterator[OpCase]:
    """A case with floating tensors runs in every floating dtype that the converter's ``Support`` names, where it names any of them."""
    named = not _REGISTRY[case.op].support.dtypes.isdisjoint(_FLOATS)
    if not named or not any(tensor.is_floating_point() for tensor in case.tensors()):
        yield case
        return
    for dtype in _FLOATS:
        eager = dtype is torch.float32 or case.op not in _EAGER_HAS_FLOAT32_ONLY
        engine = dtype is not torch.bfloat16 or not _has_no_kernel_in_bfloat16(case)
        if dtype in _REGISTRY[case.op].support.dtypes and eager and engine:
            yield case.with_floats(dtype)


def _has_no_kernel_in_bfloat16(case: OpCase) -> bool:
    """Whether it is a transposed convolution of three dimensions, or one of few channels without a bias, which rules refuse in bfloat16."""
    if "conv" not in str(case.op):
        return False
    arguments = trace_call(case).call.arguments
    return bool(arguments.get("transposed", "transpose" in str(case.op))) and (case.args[0].dim() == 5 or arguments["bias"] is None)


CASES = list(_tables())
_OFTEN_ON_A_GPU = 10
"""Of so many rows one runs on a GPU without ``-m slow``."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``dtyped_row`` runs over the tables and dtypes; on a GPU, where a row takes half a second, most rows are slow tests."""
    if "dtyped_row" not in metafunc.fixturenames:
        return
    rows = [item for row in CASES for item in _over_dtypes(row)]
    seldom = [pytest.mark.slow] if metafunc.definition.get_closest_marker("gpu") else []
    items = [pytest.param(row, marks=seldom if place % _OFTEN_ON_A_GPU else [], id=str(row)) for place, row in enumerate(rows)]
    metafunc.parametrize("dtyped_row", items)


@pytest.fixture(scope="session")
def registry() -> ConverterRegistry:
    """The converters of this package, without those of installed packages."""
    return _REGISTRY


@pytest.fixture(scope="session")
def converter(registry: ConverterRegistry) -> NetworkConverter:
    """What the tables are checked with."""
    return NetworkConverter(registry)


@pytest.fixture(scope="session")
def cases() -> list[OpCase]:
    """Every row of the tables."""
    return CASES


def _runtime() -> Any | None:
    """The runtime package, where it and a TensorRT library are installed; converters need neither."""
    if importlib.util.find_spec("torchkiln_runtime") is None:
        return None
    runtime = importlib.import_module("torchkiln_runtime")
    return None if runtime.find_library() is None else runtime


@pytest.fixture(scope="session")
def builder() -> Any | None:
    """The TensorRT builder, where there is one."""
    runtime = _runtime()
    return None if runtime is None else runtime.TensorRTBuilder(BuildOptions(targets=("sm_89",)))


@pytest.fixture(scope="session")
def engine_on_gpu() -> Callable[[Network], Engine]:
    """Builds and loads a network for the GPU of this machine."""
    runtime = _runtime()
    reason = "torchkiln_runtime or a TensorRT library is not installed" if runtime is None else runtime.gpu_support(runtime.find_library())
    if runtime is None or reason is not None:
        pytest.skip(f"engine: {reason}")
    builder, loader = runtime.TensorRTBuilder(BuildOptions()), runtime.TensorRTLoader()
    return lambda network: loader.load(builder.build(network))  # type: ignore[no-any-return]
