"""What torchkiln finds on this machine."""

from __future__ import annotations

import torch

from torchkiln_runtime import find_library, gpu_support


def diagnose() -> list[str]:
    """Lines about the TensorRT library, the GPUs and what follows for ``engine="auto"``."""
    library = find_library()
    found = "none; install torchkiln[rtx] or torchkiln[tensorrt] to build plans" if library is None else f"{library.name} {library.version}"
    lines = [f"torch: {torch.__version__}", f"TensorRT library: {found}"]
    if not torch.cuda.is_available():
        lines.append("GPU: none; engine segments run on the reference engine")
        if library is not None:
            lines.append('plans: can be built here for other machines, with targets=["sm_89", ...]')
        return lines
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        reason = "no TensorRT library is installed" if library is None else gpu_support(library, torch.device("cuda", index))
        verdict = "runs TensorRT engines" if reason is None else f"runs the reference engine: {reason}"
        lines.append(f"GPU {index}: {properties.name}, sm_{properties.major}{properties.minor}; {verdict}")
    return lines
