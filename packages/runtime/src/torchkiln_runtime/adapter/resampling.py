"""Layers that read an image between its pixels."""

from __future__ import annotations

from typing import Any

from torchkiln_core.layers import GridSample, Resize
from torchkiln_runtime.adapter.definition import Definition


def resize(to: Definition, layer: Resize, input: Any, shape: Any | None = None) -> Any:
    """``IResizeLayer``."""
    result = to.network.add_resize(input)
    if result is None:
        return None
    result.resize_mode = getattr(to.trt.InterpolationMode, layer.mode.value)
    result.coordinate_transformation = getattr(to.trt.ResizeCoordinateTransformation, layer.coordinates.value)
    result.nearest_rounding = getattr(to.trt.ResizeRoundMode, layer.rounding.value)
    result.selector_for_single_pixel = getattr(to.trt.ResizeSelector, layer.selector.value)
    result.cubic_coeff = layer.cubic_coefficient
    result.exclude_outside = layer.exclude_outside
    if layer.scales is not None:
        result.scales = list(layer.scales)
    elif layer.shape is not None:
        result.shape = to.dims(layer.shape)
    else:
        result.set_input(1, shape)
    return result


def grid_sample(to: Definition, layer: GridSample, input: Any, grid: Any) -> Any:
    """``IGridSampleLayer``."""
    result = to.network.add_grid_sample(input, grid)
    if result is None:
        return None
    result.interpolation_mode = getattr(to.trt.InterpolationMode, layer.mode.value)
    result.sample_mode = getattr(to.trt.SampleMode, layer.sample_mode.value)
    result.align_corners = layer.align_corners
    return result
