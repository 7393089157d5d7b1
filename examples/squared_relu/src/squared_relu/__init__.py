"""A custom operator with a converter for torchkiln."""

from __future__ import annotations

from squared_relu.operator import squared_relu

__all__ = ["squared_relu"]
