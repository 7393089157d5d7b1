"""torchvision's resnet18 (random weights) on scikit-learn's two bundled photographs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torchvision
from rich.console import Console
from sklearn.datasets import load_sample_images

from torchkiln.aot import compile as kiln_compile
from torchkiln.demo.display import print_latency, print_report
from torchkiln.saving import load, save

AGREEMENT = 1e-3
"""Largest allowed difference of class scores, relative to the largest score."""


def show_photographs(console: Console, device: torch.device, targets: tuple[str, ...]) -> bool:
    """Compiles, compares class scores with eager, saves and loads; whether all agree."""
    console.rule("photographs")
    photographs = _load().to(device)
    model = torchvision.models.resnet18(weights=None).eval().to(device)
    with console.status("compiling resnet18"):
        compiled = kiln_compile(model, (photographs,), targets=targets)
    with torch.no_grad():
        expected = model(photographs)
    difference = _difference(expected, compiled(photographs))
    console.print(f"resnet18 on {len(photographs)} photographs: largest difference to eager {difference:.1e} of the largest score")
    print_report(console, compiled.report)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet18.kiln"
        with console.status("saving and loading"):
            save(compiled, path)
            restored = _difference(expected, load(path)(photographs))
        console.print(f"saved and loaded ({path.stat().st_size / 1e6:.1f} MB): largest difference {restored:.1e}")
    print_latency(console, model, compiled, (photographs,))
    return difference < AGREEMENT and restored < AGREEMENT


def _load() -> torch.Tensor:
    images = torch.stack([torch.from_numpy(image.copy()) for image in load_sample_images().images]).permute(0, 3, 1, 2).float().div(255)
    small = torch.nn.functional.interpolate(images, size=(224, 224), mode="bilinear", antialias=True)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (small - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1)


def _difference(expected: torch.Tensor, got: torch.Tensor) -> float:
    return float((expected - got).abs().max() / expected.abs().max())
