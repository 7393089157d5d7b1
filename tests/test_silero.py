"""A TorchScript model in use: the voice-activity detector that the package ``silero-vad`` ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import torchkiln
from torchkiln_testing import OpClass, assert_same


@pytest.fixture(scope="module")
def detector() -> torch.jit.ScriptModule:
    # The package itself imports libraries for sound, which the model does not need.
    package = importlib.util.find_spec("silero_vad")
    if package is None or not package.submodule_search_locations:
        pytest.skip("silero-vad is not installed")
    path = Path(package.submodule_search_locations[0]) / "data" / "silero_vad.jit"
    return torch.jit.load(path).eval()


def test_the_detector_keeps_state_and_is_refused_by_name(detector: torch.jit.ScriptModule) -> None:
    """Its ``forward`` writes the state of the last call into attributes: no graph of its inputs alone."""
    with pytest.raises(torchkiln.ExportError, match=r"it writes its attributes .*_state.*; torch says: ") as caught:
        torchkiln.compile(detector, (torch.randn(1, 512), 16000), engine="reference")
    assert "give it as an argument and take it as a result" in str(caught.value)


def test_its_network_is_one_engine(detector: torch.jit.ScriptModule) -> None:
    """Sound ``[1, 576]`` and state ``[2, 1, 128]`` to a probability and the next state, over a few steps."""
    network = detector._model
    generator = torch.Generator().manual_seed(0)
    sound, state = torch.randn(1, 576, generator=generator), torch.zeros(2, 1, 128)
    compiled = torchkiln.compile(network, (sound, state), engine="reference", require_full_compilation=True)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    mine = theirs = state
    with torch.no_grad():
        for _ in range(4):
            sound = torch.randn(1, 576, generator=generator)
            want, got = network(sound, theirs), compiled(sound, mine)
            assert_same(want, got, OpClass.MATMUL)
            theirs, mine = want[1], got[1]
    assert not torch.equal(mine, state)
