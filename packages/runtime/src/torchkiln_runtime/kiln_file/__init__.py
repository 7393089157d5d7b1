"""The ``.kiln`` file: a compiled program as JSON, safetensors and plans in a stored zip; no pickle and no code.

    manifest.json            format, versions, size and sha256 of every other member
    program.json             graphs, network records, plan records, tensors by block
    tensors.safetensors      the blocks of memory that the tensors are views of, each once
    plans/<segment>/<n>.plan serialized engines, as the library wrote them

The zip comment carries a sha256 of the manifest and of every byte between the members, so each byte of a file is checked once.
The checks find damage, they do not prove who wrote a file: loading runs nothing of it, but running a program runs its operators.
"""

from __future__ import annotations

from torchkiln_runtime.kiln_file.load import load_program
from torchkiln_runtime.kiln_file.save import save_program
from torchkiln_runtime.kiln_file.saved import SavedProgram, SavedSegment

__all__ = ["SavedProgram", "SavedSegment", "load_program", "save_program"]
