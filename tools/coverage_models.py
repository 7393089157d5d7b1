"""The models whose operators are counted: random weights, small where the family has a small form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from coverage_nets import Autoencoder, UNet

Loaded = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
"""A model in eval mode, and positional and keyword arguments of one call."""

_SMALL: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_VOCABULARY = 200


class FirstOf(torch.nn.Module):
    """The entry ``out`` of a model that returns a dict."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Scores per pixel."""
        return self.model(image)["out"]  # type: ignore[no-any-return]


def _images(*shape: int) -> tuple[torch.Tensor, ...]:
    return (torch.rand(*shape),)


def _classifier(name: str, side: int = 224) -> Callable[[], Loaded]:
    def load() -> Loaded:
        import torchvision

        return torchvision.models.get_model(name, weights=None).eval(), _images(1, 3, side, side), {}

    return load


def _segmentation(name: str) -> Callable[[], Loaded]:
    def load() -> Loaded:
        import torchvision

        model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
        return FirstOf(model).eval(), _images(1, 3, 128, 128), {}

    return load


def _backbone(name: str) -> Callable[[], Loaded]:
    def load() -> Loaded:
        import torchvision

        model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
        return model.backbone.eval(), _images(1, 3, 320, 320), {}

    return load


def _video(name: str) -> Callable[[], Loaded]:
    def load() -> Loaded:
        import torchvision

        frames, side = (16, 224) if name.startswith(("mvit", "s3d")) else (8, 112)
        return torchvision.models.get_model(name, weights=None).eval(), _images(1, 3, frames, side, side), {}

    return load


def _flow() -> Loaded:
    import torchvision

    return torchvision.models.get_model("raft_small", weights=None).eval(), (*_images(1, 3, 128, 128), torch.rand(1, 3, 128, 128)), {}


def _timm(name: str) -> Callable[[], Loaded]:
    def load() -> Loaded:
        import timm

        model: Any = timm.create_model(name, pretrained=False).eval()
        return model, _images(1, *model.default_cfg["input_size"]), {}

    return load


def _words(batch: int = 2, length: int = 16) -> dict[str, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1, length - 4 :] = 0
    return {"input_ids": torch.randint(3, _VOCABULARY, (batch, length)), "attention_mask": mask}


def _transformer(family: str, kwargs: Callable[[], dict[str, Any]] = _words, model: str = "Model", **config: Any) -> Callable[[], Loaded]:
    """A model of transformers by the name of its family, such as ``Bert`` of ``BertConfig`` and ``BertModel``."""

    def load() -> Loaded:
        import transformers

        settings = getattr(transformers, f"{family}Config")(**config)
        return getattr(transformers, family + model)(settings).eval(), (), kwargs()

    return load


def _pixels(side: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.rand(1, 3, side, side)}


def _texts(**sizes: Any) -> dict[str, Any]:
    return {**_SMALL, "vocab_size": _VOCABULARY, "pad_token_id": 0, **sizes}


def _decoder(**sizes: Any) -> dict[str, Any]:
    return _texts(use_cache=False, bos_token_id=1, eos_token_id=2, **sizes)


_SEQUENCES: dict[str, Any] = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def _both(**first: torch.Tensor) -> dict[str, Any]:
    return {**first, "decoder_input_ids": torch.randint(3, _VOCABULARY, (2, 8))}


_CLASSIFIERS = (
    "alexnet", "vgg11_bn", "resnet50", "resnext50_32x4d", "densenet121", "mobilenet_v2", "mobilenet_v3_large", "mnasnet1_0",
    "shufflenet_v2_x1_0", "squeezenet1_1", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "vit_b_16", "swin_t", "maxvit_t",
)  # fmt: skip
_TIMM = (
    "beit_base_patch16_224", "cait_xxs24_224", "coatnet_nano_rw_224", "convnextv2_atto", "deit_tiny_patch16_224", "edgenext_xx_small",
    "efficientformerv2_s0", "eva02_tiny_patch14_224", "fastvit_t8", "ghostnet_100", "gmlp_s16_224", "levit_128s", "mixer_s32_224",
    "mobilevit_xxs", "nfnet_l0", "pit_ti_224", "poolformer_s12", "pvt_v2_b0", "repvgg_a0", "twins_svt_small",
)  # fmt: skip
_LANGUAGE: Mapping[str, Callable[[], Loaded]] = {
    "bert": _transformer("Bert", **_texts()),
    "distilbert": _transformer("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=_VOCABULARY),
    "electra": _transformer("Electra", **_texts(embedding_size=64)),
    "deberta_v2": _transformer("DebertaV2", **_texts(relative_attention=True, pos_att_type=["p2c", "c2p"])),
    "gpt2": _transformer("GPT2", n_embd=64, n_layer=2, n_head=4, use_cache=False, vocab_size=_VOCABULARY, bos_token_id=1, eos_token_id=2),
    "llama": _transformer("Llama", model="ForCausalLM", **_decoder(num_key_value_heads=2)),
    "qwen2": _transformer("Qwen2", model="ForCausalLM", **_decoder(num_key_value_heads=2)),
    "mistral": _transformer("Mistral", model="ForCausalLM", **_decoder(num_key_value_heads=2)),
    "gpt_neox": _transformer("GPTNeoX", **_decoder()),
    "opt": _transformer("OPT", **_decoder(ffn_dim=128, word_embed_proj_dim=64)),
    "bloom": _transformer("Bloom", n_layer=2, n_head=4, **_decoder()),
    "t5_encoder": _transformer(
        "T5", model="EncoderModel", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=_VOCABULARY
    ),
    "bart": _transformer("Bart", lambda: _both(**_words()), vocab_size=_VOCABULARY, max_position_embeddings=64, **_SEQUENCES),
}
_OTHERS: Mapping[str, Callable[[], Loaded]] = {
    "vit": _transformer("ViT", _pixels(64), image_size=64, patch_size=16, **_SMALL),
    "dinov2": _transformer("Dinov2", _pixels(56), image_size=56, patch_size=14, **{**_SMALL, "mlp_ratio": 2}),
    "segformer": _transformer("Segformer", _pixels(128), depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 64], decoder_hidden_size=32),
    "whisper": _transformer(
        "Whisper",
        lambda: _both(input_features=torch.randn(2, 20, 48)),
        vocab_size=_VOCABULARY,
        num_mel_bins=20,
        max_source_positions=24,
        max_target_positions=32,
        **_SEQUENCES,
    ),
    "wav2vec2": _transformer(
        "Wav2Vec2", lambda: {"input_values": torch.randn(1, 4000)}, **{**_SMALL, "num_conv_pos_embedding_groups": 4}, conv_dim=(32,) * 7
    ),
    "unet": lambda: (UNet().eval(), _images(1, 4, 32, 32), {}),
    "autoencoder": lambda: (Autoencoder().eval(), _images(1, 3, 64, 64), {}),
}

MODELS: dict[str, Callable[[], Loaded]] = {
    **{f"torchvision/{name}": _classifier(name) for name in _CLASSIFIERS},
    **{f"torchvision/{name} backbone": _backbone(name) for name in ("fasterrcnn_resnet50_fpn", "retinanet_resnet50_fpn")},
    **{f"torchvision/{name}": _segmentation(name) for name in ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")},
    **{f"torchvision/{name}": _video(name) for name in ("r3d_18", "s3d", "mvit_v2_s")},
    "torchvision/raft_small": _flow,
    **{f"timm/{name}": _timm(name) for name in _TIMM},
    **{f"transformers/{name}": load for name, load in _LANGUAGE.items()},
    **{f"transformers/{name}" if name not in ("unet", "autoencoder") else name: load for name, load in _OTHERS.items()},
}
"""How to load each model."""
