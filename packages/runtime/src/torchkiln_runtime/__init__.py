"""Plans and engines: the TensorRT builder, loader and engine, the reference engine and plan caches."""

from __future__ import annotations

from torchkiln_runtime.builder import TensorRTBuilder
from torchkiln_runtime.cached_builder import CachedBuilder
from torchkiln_runtime.contexts import ContextSettings
from torchkiln_runtime.disk_cache import DiskPlanCache
from torchkiln_runtime.dispatch import Candidate, ShapeDispatch
from torchkiln_runtime.engine import TensorRTEngine
from torchkiln_runtime.hot_shapes import HotShapes, Specialization
from torchkiln_runtime.library import Library, find_library, require_library
from torchkiln_runtime.loader import TensorRTLoader
from torchkiln_runtime.memory_cache import MemoryPlanCache
from torchkiln_runtime.narrowing import fixed_at, input_symbols, narrowed
from torchkiln_runtime.reference import ReferenceEngine
from torchkiln_runtime.run_plan import plan_meta
from torchkiln_runtime.support import gpu_support

__all__ = [
    "CachedBuilder",
    "Candidate",
    "ContextSettings",
    "DiskPlanCache",
    "HotShapes",
    "Library",
    "MemoryPlanCache",
    "ReferenceEngine",
    "ShapeDispatch",
    "Specialization",
    "TensorRTBuilder",
    "TensorRTEngine",
    "TensorRTLoader",
    "find_library",
    "fixed_at",
    "gpu_support",
    "input_symbols",
    "narrowed",
    "plan_meta",
    "require_library",
]
