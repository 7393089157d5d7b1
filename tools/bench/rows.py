"""The models that are measured: real architectures with random weights, fp16, on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Workload:
    """A model in eval mode on the GPU and the arguments of one call."""

    model: torch.nn.Module
    args: tuple[torch.Tensor, ...]
    kwargs: Mapping[str, Any]


def _on_gpu(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    # Made where it stays: no copy on the host takes part in the peak of host memory.
    with torch.device("cuda"):
        return make().eval().half()


def _images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 224, 224, dtype=torch.float16, device="cuda")


def _tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), device="cuda")


def _resnet50(batch: int) -> Workload:
    import torchvision

    return Workload(_on_gpu(lambda: torchvision.models.resnet50(weights=None)), (_images(batch),), {})


def _vit_b_16(batch: int) -> Workload:
    import torchvision

    model = _on_gpu(lambda: torchvision.models.vit_b_16(weights=None))
    # A fresh head is zero, and so would every result be.
    torch.nn.init.normal_(model.get_parameter("heads.head.weight"), std=0.02)
    return Workload(model, (_images(batch),), {})


def _bert_base(batch: int) -> Workload:
    from transformers import BertConfig, BertModel

    tokens = _tokens(batch, 128, 30522)
    mask = torch.ones_like(tokens)
    mask[-1, 100:] = 0
    return Workload(_on_gpu(lambda: BertModel(BertConfig())), (tokens,), {"attention_mask": mask})


def _gpt2(batch: int) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Workload(_on_gpu(lambda: GPT2LMHeadModel(GPT2Config(use_cache=False))), (_tokens(batch, 128, 50257),), {})


def _llama(batch: int) -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        max_position_embeddings=512,
        use_cache=False,
    )
    return Workload(_on_gpu(lambda: LlamaForCausalLM(config)), (_tokens(batch, 512, 32000),), {})


ROWS: Mapping[str, Callable[[], Workload]] = {
    "resnet50 b1": lambda: _resnet50(1),
    "resnet50 b32": lambda: _resnet50(32),
    "bert-base 128 tokens b1": lambda: _bert_base(1),
    "bert-base 128 tokens b16": lambda: _bert_base(16),
    "vit_b_16 b8": lambda: _vit_b_16(8),
    "gpt2 128 tokens b4": lambda: _gpt2(4),
    "llama 8x1024, 512 tokens b1": lambda: _llama(1),
}
"""A row of the table by its name."""
