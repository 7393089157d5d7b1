"""From our record of a network to TensorRT's."""

from __future__ import annotations

from torchkiln_runtime.adapter.definition import Definition
from torchkiln_runtime.adapter.replay import WRITERS, Replay, input_name, output_name

__all__ = ["WRITERS", "Definition", "Replay", "input_name", "output_name"]
