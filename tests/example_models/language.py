"""Models of text, small. Their weights are drawn wide, so that attention is not uniform: there a lost position or mask would not show."""

from __future__ import annotations

import torch

from example_models.example import Example, ready

VOCABULARY = 200
LENGTH = 16


def padding_mask(batch: int, length: int) -> torch.Tensor:
    """int64 ``[batch, length]``: rows of several lengths, padded on the right."""
    lengths = torch.tensor([length - 3 * row % length for row in range(batch)])
    return (torch.arange(length)[None, :] < lengths[:, None]).to(torch.int64)


def tokens(batch: int, length: int = LENGTH) -> torch.Tensor:
    """int64 ``[batch, length]``."""
    return torch.randint(0, VOCABULARY, (batch, length))


def bert(dtype: torch.dtype, batch: int) -> Example:
    """transformers' BertModel with an attention mask; the result is a ``ModelOutput``."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=VOCABULARY, initializer_range=0.1
    )
    return Example(ready(BertModel(config), dtype), (tokens(batch),), {"attention_mask": padding_mask(batch, LENGTH)})


def gpt2(dtype: torch.dtype, batch: int) -> Example:
    """transformers' GPT2LMHeadModel, padded on the left as for generation: the first rows of the causal mask hide everything."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64, use_cache=False, initializer_range=0.1)
    return Example(ready(GPT2LMHeadModel(config), dtype), (tokens(batch),), {"attention_mask": padding_mask(batch, LENGTH).flip(1)})


def t5_encoder(dtype: torch.dtype, batch: int) -> Example:
    """transformers' T5EncoderModel: relative position buckets, RMS norm, gated GELU, attention that is not scaled."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=VOCABULARY, use_cache=False, feed_forward_proj="gated-gelu"
    )
    return Example(ready(T5EncoderModel(config), dtype), (tokens(batch),), {"attention_mask": padding_mask(batch, LENGTH)})


def llama(dtype: torch.dtype, batch: int) -> Example:
    """transformers' LlamaForCausalLM with two key-value heads for eight heads of the query."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        use_cache=False,
        initializer_range=0.1,
    )
    return Example(ready(LlamaForCausalLM(config), dtype), (tokens(batch),), {"attention_mask": padding_mask(batch, LENGTH)})


def clip(dtype: torch.dtype, batch: int) -> Example:
    """transformers' CLIPModel: text and images, similarities of all pairs, nested outputs.

    The logits are cosines: their usual scale would multiply the rounding of half precisions by 14.
    """
    from transformers import CLIPConfig, CLIPModel

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_factor": 3.0}
    config = CLIPConfig(
        text_config={**sizes, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1},
        vision_config={**sizes, "image_size": 64, "patch_size": 16},
        projection_dim=32,
        logit_scale_init_value=0.0,
    )
    text = tokens(batch).clamp(min=2)
    text[:, -3] = 1
    image = torch.randn(batch, 3, 64, 64, dtype=dtype)
    return Example(
        ready(CLIPModel(config), dtype),
        (),
        {"input_ids": text, "pixel_values": image, "attention_mask": padding_mask(batch, LENGTH)},
    )


def whisper_encoder(dtype: torch.dtype, batch: int) -> Example:
    """transformers' WhisperEncoder: 1-d convolutions over a spectrogram, then attention."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128, num_mel_bins=20, max_source_positions=24, init_std=0.1
    )
    return Example(ready(WhisperEncoder(config), dtype), (torch.randn(batch, 20, 48, dtype=dtype),), {})
