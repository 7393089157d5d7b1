"""Layers in releases of TensorRT that lack them: the adapter takes the older form, or says what is missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchkiln_core import BuildError
from torchkiln_core.layers import Attention, CausalMask, KVCacheUpdate
from torchkiln_runtime.adapter import WRITERS


class _Network:
    """``INetworkDefinition`` of a release that has ``add_attention`` only."""

    def add_attention(self, *operands):
        self.operands = operands
        return SimpleNamespace()


@pytest.fixture
def release():
    """A definition that such a release would make."""
    trt = SimpleNamespace(AttentionNormalizationOp=SimpleNamespace(SOFTMAX="softmax"))
    return SimpleNamespace(library=SimpleNamespace(name="tensorrt", version="10.14"), trt=trt, network=_Network())


@pytest.mark.parametrize(("causal", "flag"), [(CausalMask.NONE, False), (CausalMask.UPPER_LEFT, True)])
def test_attention_by_its_older_form(release, causal, flag):
    layer = WRITERS[Attention](release, Attention(causal), "q", "k", "v", "mask")
    assert release.network.operands == ("q", "k", "v", "softmax", flag)
    assert (layer.decomposable, layer.mask) == (True, "mask")


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Attention(CausalMask.LOWER_RIGHT), "tensorrt 10.14 has no causal attention that counts from the ends"),
        (KVCacheUpdate(), "tensorrt 10.14 has no update of caches"),
    ],
    ids=lambda value: value.kind() if hasattr(value, "kind") else "",
)
def test_layers_that_a_release_lacks(release, layer, message):
    with pytest.raises(BuildError, match=message):
        WRITERS[type(layer)](release, layer, "a", "b", "c")


def test_attention_that_a_release_lacks(release):
    release.trt = SimpleNamespace()
    with pytest.raises(BuildError, match="has no attention"):
        WRITERS[Attention](release, Attention(), "q", "k", "v")
