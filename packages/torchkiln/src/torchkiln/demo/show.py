"""The main job on real input, with nothing to download: handwritten digits, then photographs."""

from __future__ import annotations

import torch
from rich.console import Console

from torchkiln.demo.digits import show_digits
from torchkiln.demo.photographs import show_photographs
from torchkiln.doctor import diagnose
from torchkiln_runtime import find_library

TARGETS = ("sm_86", "sm_89", "sm_120")
"""GPUs that the demo builds plans for where it finds none to run on."""


def run_demo(seed: int) -> int:
    """Trains, compiles, compares and prints; 0 when compiled and eager agree."""
    console = Console()
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    targets = TARGETS if device.type == "cpu" and find_library() is not None else ()
    for line in diagnose():
        console.print(f"[dim]{line}[/dim]", highlight=False)
    agree = [show(console, device, targets) for show in (show_digits, show_photographs)]
    return 0 if all(agree) else 1
