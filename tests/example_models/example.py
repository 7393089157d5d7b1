"""What an example is, and weights under which an error shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Example:
    """A model in eval mode and the arguments of one call."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def randomize(model: torch.nn.Module) -> None:
    """Randomizes what a fresh model leaves trivial: there, a wrong fold or a dropped term would not show.

    Norms and layer scales of one number, biases and heads of zeros.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.numel() > 1 and parameter.min() == parameter.max():
                _randomize_trivial(name, parameter)


def _randomize_trivial(name: str, parameter: torch.Tensor) -> None:
    if parameter.min() != 0:  # a scale: 1, or the tiny number of a layer scale
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    elif parameter.dim() >= 2 and "weight" in name:
        torch.nn.init.normal_(parameter, std=0.02)
    else:
        torch.nn.init.normal_(parameter, std=0.1)


def enliven(model: torch.nn.Module) -> None:
    """Draws linear weights so that signals keep their size; the usual small ones make every image or text look alike."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.MultiheadAttention):
                torch.nn.init.normal_(module.in_proj_weight, std=module.embed_dim**-0.5)
            elif isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)


def calibrate(model: torch.nn.Module, *args: torch.Tensor) -> None:
    """Gives batch norms the statistics of a batch, a little off and wider; with arbitrary ones, deep layers would see no signal."""
    model.eval()
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        model(*args)
        for norm in norms:
            norm.eval()
            # A channel that hardly varies about its mean would blow up roundings.
            norm.running_var = torch.maximum(norm.running_var, norm.running_mean.square() / 4)
            norm.running_mean += 0.1 * norm.running_var.sqrt() * torch.randn_like(norm.running_mean)
            norm.running_var *= torch.empty_like(norm.running_var).uniform_(1.0, 1.3)


def ready(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """The model in eval mode and ``dtype``, with nothing trivial in it."""
    randomize(model)
    return model.eval().to(dtype)
