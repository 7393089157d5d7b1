"""Rotary embeddings as models write them: one layer in fp32, elementwise calls with the roundings of eager in half dtypes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.onnx.ops
import transformers
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

LENGTH, WIDTH = 6, 8
Form = Callable[[torch.Tensor], torch.Tensor]


def _angles() -> torch.Tensor:
    return torch.outer(torch.arange(float(LENGTH)), 10000 ** -torch.linspace(0, 1, WIDTH // 2 + 1)[:-1])


def halves(x: torch.Tensor) -> torch.Tensor:
    """As Llama writes it: the features ``i`` and ``i + WIDTH / 2`` are a pair."""
    table = torch.cat([_angles(), _angles()], -1)
    cos, sin = table.cos().to(x.dtype), table.sin().to(x.dtype)
    turned = torch.cat([-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]], -1)
    return x * cos + turned * sin


def pairs(x: torch.Tensor) -> torch.Tensor:
    """As GPT-J writes it: neighbours are a pair."""
    cos, sin = (item.to(x.dtype).repeat_interleave(2, -1) for item in (_angles().cos(), _angles().sin()))
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + turned * sin


def turns(x: torch.Tensor) -> torch.Tensor:
    """As the first Llama wrote it: products of complex numbers."""
    table = torch.polar(torch.ones(LENGTH, WIDTH // 2), _angles())
    y = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * table
    return torch.view_as_real(y).flatten(-2).type_as(x)


def _x(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, 3, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)


def rotations(compiled: Any) -> int:
    """How many layers rotate."""
    _, program = compiled.parts
    return sum(step.layer.kind() == "RotaryEmbedding" for segment in program.segments.values() for step in segment.network.steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("form", [halves, pairs, turns], ids=lambda form: form.__name__)
def test_rotary_embedding(form: Form, dtype: torch.dtype) -> None:
    x = _x(dtype)
    compiled = torchkiln.compile(form, (x,), engine="reference", require_full_compilation=True, lowering_debug=True)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    # A layer rounds once: in half dtypes, where eager rounds both products and their sum, nothing is raised to it.
    assert rotations(compiled) == (form is not turns and dtype is torch.float32)
    assert_same(form(x), compiled(x), OpClass.EXACT if form is not turns else OpClass.POINTWISE)


@pytest.mark.parametrize("form", [halves, pairs], ids=lambda form: form.__name__)
def test_under_torch_compile(form: Form) -> None:
    reports: list[torchkiln.Report] = []
    torch._dynamo.reset()
    compiled = torch.compile(form, backend="torchkiln", options={"engine": "reference", "on_report": reports.append})
    with torch.no_grad():
        assert_same(form(_x()), compiled(_x()), OpClass.EXACT)
    assert [call for report in reports for part in report.segments for call in part.calls if "Rotary" in call] == [
        "onnx.RotaryEmbedding.opset23"
    ]


def test_in_a_segment_of_pytorch_it_is_saved_and_loaded(tmp_path: Path) -> None:
    """float64 has no layer."""

    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return torch.onnx.ops.rotary_embedding(x.double(), cos.double(), sin.double()).float() * 2

    given = (_x(), torch.randn(2, LENGTH, WIDTH // 2), torch.randn(2, LENGTH, WIDTH // 2))
    compiled = torchkiln.compile(rotate, given, engine="reference", min_block_size=1)
    assert [segment.kind for segment in compiled.report.segments] == ["torch", "engine"]
    torchkiln.save(compiled, tmp_path / "rotate.kiln")
    loaded = torchkiln.load(tmp_path / "rotate.kiln", engine="reference")
    assert_same(rotate(*given), loaded(*given), OpClass.EXACT)


def test_a_plan_is_built() -> None:
    pytest.importorskip("tensorrt_rtx")
    compiled = torchkiln.compile(pairs, (_x(),), targets=["sm_89"], engine="reference", require_full_compilation=True)
    assert rotations(compiled) == 1


class _Logits(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor) -> Any:
        return self.net(ids).logits


_SMALL = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1}
_USUAL = {**_SMALL, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "use_cache": False}
_GPTJ = {**_SMALL, "n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 2, "rotary_dim": 8, "use_cache": False}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_USUAL, num_key_value_heads=1)),
    "gpt-neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**_USUAL, rotary_pct=0.25)),
    "phi": lambda: transformers.PhiForCausalLM(transformers.PhiConfig(**_USUAL, partial_rotary_factor=0.5)),
    "gpt-j": lambda: transformers.GPTJForCausalLM(transformers.GPTJConfig(**_GPTJ)),
}


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, dynamic: bool) -> None:
    pytest.importorskip("tensorrt_rtx")
    torch.manual_seed(0)
    net = _Logits(MODELS[name]()).eval()
    ids = torch.randint(2, 60, (2, 7))
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},) if dynamic else None
    options = {"targets": ["sm_89"], "engine": "reference", "require_full_compilation": True, "lowering_debug": True}
    compiled = torchkiln.compile(net, (ids,), dynamic_shapes=shapes, **options)
    # Queries and keys of two layers.
    assert rotations(compiled) == 4
    with torch.no_grad():
        for given in (ids, torch.randint(2, 60, (3, 11))) if dynamic else (ids,):
            assert_same(net(given), compiled(given), OpClass.MODEL)
