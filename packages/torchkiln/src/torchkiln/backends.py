"""Switches of this process, in the manner of ``torch.backends.cudnn``: what compilations use unless their own options say otherwise.

They act when a program is compiled. ``flags(...)`` changes them for the current thread or task only.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch
from torch.backends import ContextProp, PropModule

from torchkiln.logs import warn_once
from torchkiln.torch_precision import tf32_in_torch
from torchkiln_core import Options, RuntimeOptions
from torchkiln_core.stages import PlanCache
from torchkiln_runtime import MemoryPlanCache, find_library, gpu_support

LibraryName = Literal["tensorrt", "tensorrt_rtx", "reference"]
_LIBRARIES = ("default", "tensorrt", "tensorrt_rtx", "reference")


@dataclass(frozen=True, slots=True)
class _Flags:
    enabled: bool = True
    allow_tf32: bool | None = None
    deterministic: bool | None = None
    benchmark: bool = False
    library: LibraryName | None = None


_lock = threading.Lock()
_of_process = _Flags()
_of_context: ContextVar[_Flags | None] = ContextVar("torchkiln_flags", default=None)


def is_built() -> bool:
    """Whether a TensorRT library is installed."""
    return find_library() is not None


def is_available() -> bool:
    """Whether engines can run here: a TensorRT library is installed, and torch sees a GPU that it supports."""
    return gpu_support(find_library()) is None


def version() -> str | None:
    """Version of the TensorRT library, such as ``1.6.1.120``."""
    library = find_library()
    return None if library is None else library.version


def preferred_engine_library(library: str | None = None) -> str:
    """Chooses what runs engines, and returns the choice.

    Args:
        library: ``"tensorrt"``, ``"tensorrt_rtx"``, ``"reference"`` (no TensorRT), or ``"default"`` (the first that is installed);
            ``None`` changes nothing.

    Raises:
        ValueError: Another name.
    """
    if library is not None:
        if library not in _LIBRARIES:
            raise ValueError(f"preferred_engine_library: expected one of {', '.join(_LIBRARIES)}, got {library!r}")
        _change(library=None if library == "default" else library)
    return _current().library or "default"


@contextmanager
def flags(
    *, enabled: bool | None = None, allow_tf32: bool | None = None, deterministic: bool | None = None, benchmark: bool | None = None
) -> Iterator[None]:
    """Changes flags for the current thread or task, until the block ends; ``None`` leaves one as it is.

    Raises:
        TypeError: A value that is not a bool.
    """
    wanted = {"enabled": enabled, "allow_tf32": allow_tf32, "deterministic": deterministic, "benchmark": benchmark}
    given: dict[str, Any] = {name: _boolean(name, value) for name, value in wanted.items() if value is not None}
    token = _of_context.set(dataclasses.replace(_current(), **given))
    try:
        yield
    finally:
        _of_context.reset(token)


class PlanCacheControl:
    """Plans that compilations of this process share, in the manner of ``torch.backends.cuda.cufft_plan_cache``.

    A plan holds the weights of its engine, so none is kept unless ``max_size`` is set.
    """

    def __init__(self) -> None:
        self._cache: MemoryPlanCache | None = None
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Number of plans kept."""
        cache = self._cache
        return 0 if cache is None else len(cache)

    @property
    def max_size(self) -> int:
        """Number of plans kept at most; 0 keeps none."""
        cache = self._cache
        return 0 if cache is None else cache.max_size

    @max_size.setter
    def max_size(self, count: int) -> None:
        if _integer("plan_cache.max_size", count) < 0:
            raise ValueError(f"plan_cache.max_size: expected 0 or more, got {count!r}")
        with self._lock:
            if count == 0:
                self._cache = None
            elif self._cache is None:
                self._cache = MemoryPlanCache(count)
            else:
                self._cache.max_size = count

    def clear(self) -> None:
        """Drops every plan."""
        cache = self._cache
        if cache is not None:
            cache.clear()

    def for_compilation(self) -> PlanCache:
        """The shared cache, or one of the compilation's own."""
        cache = self._cache
        return MemoryPlanCache() if cache is None else cache


plan_cache = PlanCacheControl()


def resolve(options: Options) -> Options:
    """The options with the flags in place of what they leave open.

    Raises:
        ValueError: An option that changes results while the program runs, where it must be deterministic.
    """
    current = _current()
    build, runtime = options.build, options.runtime
    deterministic = _deterministic() if build.deterministic is None else build.deterministic
    benchmark = current.benchmark if build.benchmark is None else build.benchmark
    if benchmark and deterministic:
        warn_once("benchmark: nothing is measured where programs must be deterministic, for what is faster differs from run to run")
    if deterministic:
        _check_deterministic(runtime)
    build = dataclasses.replace(
        build,
        allow_tf32=_allow_tf32() if build.allow_tf32 is None else build.allow_tf32,
        deterministic=deterministic,
        benchmark=benchmark and not deterministic,
    )
    if build.library is None and current.library in ("tensorrt", "tensorrt_rtx"):
        build = dataclasses.replace(build, library=current.library)
    if runtime.engine == "auto" and (not current.enabled or current.library == "reference"):
        runtime = dataclasses.replace(runtime, engine="reference")
    return dataclasses.replace(options, build=build, runtime=runtime)


def _check_deterministic(runtime: RuntimeOptions) -> None:
    """Raises ``ValueError`` for options by which equal calls run on different kernels, depending on what ran before."""
    changing = {
        "specialize": runtime.specialize is not None,
        "out_of_profile": runtime.out_of_profile == "rebuild",
        "kernel_specialization": runtime.kernel_specialization == "lazy",
    }
    for name in (name for name, changes in changing.items() if changes):
        raise ValueError(
            f"{name}={getattr(runtime, name)!r}: with deterministic=True, expected nothing that runs equal calls on other kernels later; "
            f"leave out {name}, or compile with deterministic=False"
        )


def _current() -> _Flags:
    return _of_context.get() or _of_process


def _change(**values: Any) -> None:
    global _of_process  # noqa: PLW0603 - these flags are the process's by nature
    local = _of_context.get()
    if local is not None:
        _of_context.set(dataclasses.replace(local, **values))
        return
    with _lock:
        _of_process = dataclasses.replace(_of_process, **values)


def _allow_tf32() -> bool:
    """As set, else as torch allows it to both matrix products and convolutions: an engine has one switch for the two."""
    chosen = _current().allow_tf32
    if chosen is not None:
        return chosen
    return all(tf32_in_torch())


def _deterministic() -> bool:
    """As set, else as ``torch.use_deterministic_algorithms`` says."""
    chosen = _current().deterministic
    return torch.are_deterministic_algorithms_enabled() if chosen is None else chosen


def _set_enabled(value: bool) -> None:
    _change(enabled=_boolean("enabled", value))


def _set_allow_tf32(value: bool | None) -> None:
    _change(allow_tf32=None if value is None else _boolean("allow_tf32", value))


def _set_deterministic(value: bool | None) -> None:
    _change(deterministic=None if value is None else _boolean("deterministic", value))


def _set_benchmark(value: bool) -> None:
    _change(benchmark=_boolean("benchmark", value))


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"torchkiln.backends.{name}: expected a bool, got {value!r}")
    return value


def _integer(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"torchkiln.backends.{name}: expected an int, got {value!r}")
    return value


class _Backends(PropModule):
    """This module, with the flags as attributes."""

    enabled = ContextProp(lambda: _current().enabled, _set_enabled)  # type: ignore[no-untyped-call]
    """Whether TensorRT runs engines; off, ``engine="auto"`` is the reference engine."""
    allow_tf32 = ContextProp(_allow_tf32, _set_allow_tf32)  # type: ignore[no-untyped-call]
    """Whether fp32 products and convolutions of engines may use TF32; follows torch's flags until set, and again after ``None``."""
    deterministic = ContextProp(_deterministic, _set_deterministic)  # type: ignore[no-untyped-call]
    """Whether equal inputs give equal bits in every run; follows ``torch.use_deterministic_algorithms`` until set, and after ``None``."""
    benchmark = ContextProp(lambda: _current().benchmark, _set_benchmark)  # type: ignore[no-untyped-call]
    """Whether engine segments are timed against PyTorch, and the faster of the two is kept."""


enabled: bool
allow_tf32: bool | None
deterministic: bool | None
benchmark: bool

_module: ModuleType = sys.modules[__name__]
sys.modules[__name__] = _Backends(_module, __name__)  # type: ignore[no-untyped-call]
