"""Plans and engines: the TensorRT builder, loader and engine, the reference engine and plan caches."""

from __future__ import annotations

from torchkiln_runtime.builder import TensorRTBuilder
from torchkiln_runtime.library import Library, find_library, require_library
from torchkiln_runtime.reference import ReferenceEngine

__all__ = ["Library", "ReferenceEngine", "TensorRTBuilder", "find_library", "require_library"]
