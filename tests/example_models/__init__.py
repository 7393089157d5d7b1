"""The models that integration tests compile: real architectures, random weights, and one with real weights."""

from __future__ import annotations

from collections.abc import Callable

import torch

from example_models.example import Example
from example_models.language import bert, clip, gpt2, llama, t5_encoder, whisper_encoder
from example_models.sentences import minilm, minilm_architecture, minilm_folder
from example_models.unets import bilinear_unet, classic_unet, diffusion_unet
from example_models.vision import (
    convnext_tiny,
    efficientnet_b0,
    mobilenet_v3_small,
    resnet18,
    resnet50,
    small_conv_net,
    swin_t,
    vit_b_16,
    vit_tiny_patch16_224,
)

__all__ = ["EXAMPLES", "Example", "minilm", "minilm_folder"]

EXAMPLES: dict[str, Callable[[torch.dtype, int], Example]] = {
    "small_conv_net": small_conv_net,
    "resnet18": resnet18,
    "vit_b_16": vit_b_16,
    "bert": bert,
    "minilm": minilm_architecture,
    "resnet50": resnet50,
    "mobilenet_v3_small": mobilenet_v3_small,
    "efficientnet_b0": efficientnet_b0,
    "convnext_tiny": convnext_tiny,
    "swin_t": swin_t,
    "vit_tiny_patch16_224": vit_tiny_patch16_224,
    "gpt2": gpt2,
    "t5_encoder": t5_encoder,
    "llama": llama,
    "clip": clip,
    "whisper_encoder": whisper_encoder,
    "diffusion_unet": diffusion_unet,
    "classic_unet": classic_unet,
    "bilinear_unet": bilinear_unet,
}
