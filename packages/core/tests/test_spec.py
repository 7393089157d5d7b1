"""Ranges of dimensions."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from torchkiln_core import DimRange, TensorSpec


def test_shapes_of_a_spec():
    spec = TensorSpec("x", torch.float16, (DimRange("s0", 1, 4, 9), 3, DimRange("2*s0", 2, 8, 18)))
    assert (spec.min_shape, spec.opt_shape, spec.max_shape) == ((1, 3, 2), (4, 3, 8), (9, 3, 18))
    scalar = TensorSpec("y", torch.bool, ())
    assert scalar.min_shape == scalar.opt_shape == scalar.max_shape == ()


@pytest.mark.parametrize("bounds", [(0, 0, 0), (1, 1, 1), (0, 5, 9)])
def test_ordered_bounds_are_taken(bounds):
    made = DimRange("s0", *bounds)
    assert (made.min, made.opt, made.max) == bounds


@pytest.mark.parametrize("bounds", [(-1, 0, 1), (2, 1, 3), (1, 4, 3), (5, 4, 3)])
def test_unordered_bounds_are_refused(bounds):
    with pytest.raises(ValueError, match=r"dimension s0: expected 0 <= min <= opt <= max, got"):
        DimRange("s0", *bounds)


def test_specs_are_values():
    one, two = (TensorSpec("x", torch.int64, (DimRange("s0", 1, 2, 3),)) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "y"
