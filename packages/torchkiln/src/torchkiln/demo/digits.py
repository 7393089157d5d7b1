"""A small convolutional net on scikit-learn's bundled handwritten digits (1,797 images of 8 x 8 pixels)."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.progress import Progress
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from torchkiln.aot import compile as kiln_compile
from torchkiln.demo.display import print_latency, print_report

EPOCHS = 15
BATCH = 64


class DigitNet(torch.nn.Module):
    """``[N, 1, 8, 8] -> [N, 10]``."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(32),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(32, 32, 3, padding=1),
            torch.nn.GELU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
        )
        self.head = torch.nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(self.features(image))  # type: ignore[no-any-return]


def show_digits(console: Console, device: torch.device, targets: tuple[str, ...]) -> bool:
    """Trains, compiles, and compares predictions on held-out digits; whether all agree."""
    console.rule("handwritten digits")
    train_images, test_images, train_labels, test_labels = _load(device)
    model = _train(console, train_images, train_labels)
    with console.status("compiling"):
        compiled = kiln_compile(model, (test_images,), targets=targets)
    with torch.no_grad():
        eager_digits = model(test_images).argmax(1)
    digits = compiled(test_images).argmax(1)
    count = len(test_labels)
    agree = int((eager_digits == digits).sum())
    console.print(
        f"accuracy on {count} held-out digits: eager {_accuracy(eager_digits, test_labels)}, compiled {_accuracy(digits, test_labels)}"
    )
    console.print(f"predictions that agree: {agree} of {count}")
    print_report(console, compiled.report)
    print_latency(console, model, compiled, (test_images,))
    return agree == count


def _load(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    data = load_digits()
    images = torch.from_numpy(data.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(data.target).long()
    train, test = train_test_split(torch.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
    return tuple(tensor.to(device) for tensor in (images[train], images[test], labels[train], labels[test]))  # type: ignore[return-value]


def _train(console: Console, images: torch.Tensor, labels: torch.Tensor) -> torch.nn.Module:
    model = DigitNet().to(images.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("training", total=EPOCHS)
        for _ in range(EPOCHS):
            for rows in torch.split(torch.randperm(len(labels), device=images.device), BATCH):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            progress.advance(task)
    return model.eval()


def _accuracy(digits: torch.Tensor, labels: torch.Tensor) -> str:
    return f"{(digits == labels).float().mean().item():.1%}"
