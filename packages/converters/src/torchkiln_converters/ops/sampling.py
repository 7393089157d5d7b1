"""Images read at the places of a grid."""

from __future__ import annotations

import torch

from torchkiln_converters.converter import converter
from torchkiln_converters.support import FLOATS, Support, fake, same_dtype
from torchkiln_converters.writing.values import cast
from torchkiln_core import Network, OpCall, Requires, Value
from torchkiln_core.layers import GridSample, Interpolation, SliceMode

aten = torch.ops.aten

_MODES = (Interpolation.LINEAR, Interpolation.NEAREST, Interpolation.CUBIC)
_PADDINGS = (SliceMode.FILL, SliceMode.CLAMP, SliceMode.REFLECT)
"""By the numbers of PyTorch. Source: ATen/native/GridSamplerUtils.h."""


def _is_image(call: OpCall) -> bool:
    return call.arguments["interpolation_mode"] != _MODES.index(Interpolation.CUBIC) or fake(call, "input").dim() == 4


_SUPPORT = Support(
    dtypes=FLOATS,
    ranks=range(4, 6),
    rules=(same_dtype("input", "grid"), Requires("a 2-d image where the interpolation is bicubic", _is_image)),
)


@converter((aten.grid_sampler.default, aten.grid_sampler_2d.default, aten.grid_sampler_3d.default), _SUPPORT)
def grid_sampler(net: Network, input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Value:
    """``grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners)``.

    Volumes are read in float32: of the half dtypes only images were compared on a GPU.
    """
    layer = GridSample(_MODES[interpolation_mode], _PADDINGS[padding_mode], align_corners)
    wide = torch.float32 if input.rank == 5 else input.dtype
    return cast(net, net.add(layer, cast(net, input, wide), cast(net, grid, wide)), input.dtype)
