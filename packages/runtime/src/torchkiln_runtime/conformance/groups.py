"""Rows in groups: each group becomes one network, since every network costs a build and a compilation of kernels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torchkiln_core import DimRange, Network
from torchkiln_runtime.conformance.attention_rows import attention_rows
from torchkiln_runtime.conformance.control_flow_rows import control_flow_rows
from torchkiln_runtime.conformance.data_dependent_rows import data_dependent_rows
from torchkiln_runtime.conformance.indexing_rows import indexing_rows
from torchkiln_runtime.conformance.linear_rows import linear_rows
from torchkiln_runtime.conformance.pointwise_rows import pointwise_rows
from torchkiln_runtime.conformance.quantization_rows import quantization_rows
from torchkiln_runtime.conformance.random_rows import random_rows
from torchkiln_runtime.conformance.reduction_rows import reduction_rows
from torchkiln_runtime.conformance.resampling_rows import resampling_rows
from torchkiln_runtime.conformance.row import SIZES, Row

_GROUP_SIZE = 64
_OPT = {name: size.opt for name, size in SIZES.items()}
_MAX = {name: size.max for name, size in SIZES.items()}
_MIN = {name: size.min for name, size in SIZES.items()}


def all_rows() -> tuple[Row, ...]:
    """Every row of the table, those of a layer together."""
    rows = (
        *pointwise_rows(),
        *reduction_rows(),
        *indexing_rows(),
        *linear_rows(),
        *resampling_rows(),
        *quantization_rows(),
        *random_rows(),
        *attention_rows(),
        *data_dependent_rows(),
        *control_flow_rows(),
    )
    order = {layer: index for index, layer in enumerate(dict.fromkeys(row.layer for row in rows))}
    return tuple(sorted(rows, key=lambda row: order[row.layer]))


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that run in one network, with static shapes or with dynamic ones."""

    name: str
    rows: tuple[Row, ...]
    dynamic: bool

    @property
    def sizes(self) -> tuple[Mapping[str, int], ...]:
        """The sizes that the group runs with: the fixed ones, or the ends and the middle of the ranges."""
        return (_OPT, _MAX, _MIN) if self.dynamic else (_OPT,)

    def halves(self) -> tuple[Group, Group]:
        """The group in two, to find the row that spoils it."""
        middle = len(self.rows) // 2
        return Group(f"{self.name}a", self.rows[:middle], self.dynamic), Group(f"{self.name}b", self.rows[middle:], self.dynamic)

    def values(self, sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """The inputs of the network."""
        return [tensor for row in self.rows for tensor in row.values(sizes)]


def all_groups(rows: Sequence[Row]) -> tuple[Group, ...]:
    """Rows by layer, at most 64 in one network, first with static shapes and then with dynamic ones."""
    groups = []
    for layer, members in itertools.groupby(rows, key=lambda row: row.layer):
        listed = list(members)
        for dynamic in (False, True):
            chosen = [row for row in listed if row.has_sizes or not dynamic]
            kind = "dynamic" if dynamic else "static"
            groups += [Group(f"{layer}-{kind}-{index}", part, dynamic) for index, part in enumerate(_parts(chosen))]
    return tuple(groups)


def sample_groups(rows: Sequence[Row], count: int) -> tuple[Group, ...]:
    """At most ``count`` rows of each layer from all over its rows, in one network: with dynamic shapes where rows have sizes."""
    groups = []
    for layer, members in itertools.groupby(rows, key=lambda row: row.layer):
        listed = list(members)
        sized = [row for row in listed if row.has_sizes]
        chosen = sized or listed
        picked = [chosen[index * len(chosen) // count] for index in range(count)] if len(chosen) > count else chosen
        groups.append(Group(f"{layer}-sample", tuple(picked), bool(sized)))
    return tuple(groups)


def _parts(rows: Sequence[Row]) -> list[tuple[Row, ...]]:
    return [tuple(rows[start : start + _GROUP_SIZE]) for start in range(0, len(rows), _GROUP_SIZE)]


def write_group(group: Group) -> tuple[Network, tuple[int, ...]]:
    """The network of a group, and how many outputs each row has."""
    net, sizes = _dynamic_network() if group.dynamic else _static_network()
    counts = []
    for index, row in enumerate(group.rows):
        with net.scope(f"row_{index}", row.name):
            values = [net.input(f"row_{index}_{place}", operand.dtype, operand.sized(sizes)) for place, operand in enumerate(row.operands)]
            results = row.write(net, *values)
        outputs = results if isinstance(results, tuple) else (results,)
        for place, value in enumerate(outputs):
            net.output(f"row_{index}_{place}", value)
        counts.append(len(outputs))
    return net, tuple(counts)


def _static_network() -> tuple[Network, dict[str, Any]]:
    # A shape environment also for fixed sizes: those of some results depend on data.
    return Network(fake_mode=FakeTensorMode(shape_env=ShapeEnv())), dict(_OPT)


def _dynamic_network() -> tuple[Network, dict[str, Any]]:
    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))
    # Symbols get a size of 3 or more to begin with; torch takes 0 and 1 for constants.
    example = torch.empty([3 + index for index in range(len(SIZES))])
    fake = mode.from_tensor(example, symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * len(SIZES)))
    sizes = dict(zip(SIZES, fake.shape, strict=True))
    dims = {str(symbol): DimRange(str(symbol), SIZES[name].min, SIZES[name].opt, SIZES[name].max) for name, symbol in sizes.items()}
    return Network(dims, mode), sizes
