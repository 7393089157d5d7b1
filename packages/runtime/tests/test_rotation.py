"""Rotary embedding where the library has no layer for it: the layers that stand for it compute the same, and build."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from torchkiln_core.layers import RotaryEmbedding
from torchkiln_runtime import TensorRTBuilder, find_library
from torchkiln_runtime.adapter import WRITERS
from torchkiln_runtime.adapter.definition import Definition
from torchkiln_runtime.conformance import all_groups, all_rows, write_group

ROWS = [row for row in all_rows() if row.layer == "RotaryEmbedding"]


class _Tensor:
    """An ``ITensor`` with a value; ``open`` dimensions are known only when the network runs."""

    def __init__(self, value, open=()):
        self.value, self.dtype = value, value.dtype
        self.shape = tuple(-1 if dim in open else size for dim, size in enumerate(value.shape))


class _Layer:
    """A layer that computes when its output is asked for, by what has been set on it until then."""

    def __init__(self, run, *inputs):
        self._run, self._inputs = run, list(inputs)

    def set_input(self, index, tensor):
        self._inputs[index:] = [*self._inputs[index:index], *[None] * (index - len(self._inputs)), tensor]

    def get_output(self, index):
        assert index == 0
        return _Tensor(self._run(self, *(None if item is None else item.value for item in self._inputs)))


def _shuffled(layer, value):
    sizes = [value.shape[dim] if size == 0 else size for dim, size in enumerate(layer.reshape_dims)]
    return value.reshape(sizes).permute(getattr(layer, "second_transpose", list(range(len(sizes)))))


def _sliced(start, size, stride):
    def run(layer, value, _=None, sizes=None):
        for dim, count in enumerate(size if sizes is None else sizes.tolist()):
            value = value.index_select(dim, start[dim] + stride[dim] * torch.arange(count))
        return value

    return run


class _Network:
    """``INetworkDefinition`` of a release without the layer, which computes what it is given."""

    add_shuffle = staticmethod(lambda tensor: _Layer(_shuffled, tensor))
    add_slice = staticmethod(lambda tensor, *parts: _Layer(_sliced(*parts), tensor))
    add_shape = staticmethod(lambda tensor: _Layer(lambda layer, value: torch.tensor(value.shape), tensor))
    add_constant = staticmethod(lambda dims, weights: _Layer(lambda layer, value: value, _Tensor(weights)))
    add_cast = staticmethod(lambda tensor, dtype: _Layer(lambda layer, value: value.to(dtype), tensor))
    add_elementwise = staticmethod(lambda left, right, op: _Layer(lambda layer, *values: op(*values), left, right))
    add_gather = staticmethod(lambda table, index, axis: _Layer(lambda layer, data, at: data[at.long()], table, index))
    add_concatenation = staticmethod(lambda parts: _Layer(lambda layer, *values: torch.cat(values, layer.axis), *parts))


@pytest.fixture
def release():
    """A definition that such a release would make."""
    operations = SimpleNamespace(SUM=torch.add, SUB=torch.sub, PROD=torch.mul)
    module = SimpleNamespace(ElementWiseOperation=operations, Permutation=list, Dims=list)
    library = SimpleNamespace(name="tensorrt", version="10.13", module=module, dtype=lambda dtype: dtype, weights=lambda tensor: tensor)
    return Definition(library, _Network())


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_layers_compute_the_same(row, dynamic, release):
    network, _ = write_group(all_groups([row])[0])
    (step,) = [step for step in network.steps if isinstance(step.layer, RotaryEmbedding)]
    values = row.values({"n": 2, "m": 5})
    open_dims = {4: (0, 2), 3: (0, 1)} if dynamic else {}
    tensors = [_Tensor(value, open_dims.get(value.dim(), ())) for value in values]
    result = WRITERS[RotaryEmbedding](release, step.layer, *tensors)
    assert torch.equal(result.value, step.layer.run(*values))


@pytest.mark.parametrize("group", all_groups(ROWS), ids=lambda group: group.name)
def test_they_build(group, ahead, monkeypatch):
    library = find_library("tensorrt_rtx")
    monkeypatch.delattr(library.module.INetworkDefinition, "add_rotary_embedding")
    network, counts = write_group(group)
    assert len(TensorRTBuilder(ahead).build(network).outputs) == sum(counts)
