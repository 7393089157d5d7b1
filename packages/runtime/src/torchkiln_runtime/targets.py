"""What plans are built for: the compute capabilities asked for, or the GPU at hand."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

import torch

from torchkiln_core import BuildError
from torchkiln_runtime.library import Library

CURRENT = "current"
"""The target that is the GPU at hand."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of one build: their names, TensorRT's values for them, and the GPU when the plan is tied to it."""

    names: tuple[str, ...]
    values: tuple[Any, ...]
    gpu: str | None = None


def current_gpu() -> str | None:
    """Compute capability of torch's current GPU, such as ``sm_90``."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def resolve_targets(requested: tuple[str, ...], library: Library) -> Targets:
    """The targets of a build from the option ``targets``.

    Raises:
        BuildError: An unknown target, or one that needs a GPU where there is none.
    """
    named, gpu = library.named_targets(), current_gpu()
    wanted = tuple(dict.fromkeys(name.lower() for name in requested)) or (CURRENT,)
    for name in wanted:
        if name not in named and name not in (CURRENT, gpu):
            raise _unknown(name, named, library)
    # The GPU at hand need not have a name of its own: TensorRT-RTX builds for a Hopper GPU as "current" only.
    tied = [name for name in wanted if name not in named]
    if not tied:
        return Targets(wanted, tuple(named[name] for name in wanted))
    if gpu is None:
        listed = ", ".join(f'"{name}"' for name in named)
        fix = f"name the GPUs that the plan is for: targets=({listed})" if named else "build on the GPU that the plan is for"
        raise BuildError(f"{library.name}: no GPU to build for on this machine, and no target was named", fix=fix)
    if len(wanted) > 1:
        if gpu not in named:
            raise BuildError(
                f"targets {', '.join(wanted)}: the GPU at hand ({gpu}) cannot share a plan with others", fix="build it a plan of its own"
            )
        names = tuple(dict.fromkeys(gpu if name == CURRENT else name for name in wanted))
        return Targets(names, tuple(named[name] for name in names))
    capabilities = getattr(library.module, "ComputeCapability", None)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Targets((CURRENT,), () if capabilities is None else (capabilities.CURRENT,), f"{gpu} {properties.name}")


def _unknown(name: str, named: dict[str, Any], library: Library) -> BuildError:
    spelt = name.replace(".", "").replace("-", "_")
    fix = "name one of these in targets="
    if re.fullmatch(r"sm_\d+", spelt) and spelt not in named:
        # No misspelling: a compute capability that the library cannot be told, though such a GPU itself may do, as a Hopper GPU does.
        fix += f', or compile where a GPU of {name} is, with targets=["{CURRENT}"]'
    elif close := difflib.get_close_matches(spelt, [*named, CURRENT], n=1):
        fix = f"did you mean {close[0]!r}? {fix}"
    return BuildError(
        f"target {name!r}: {library.name} {library.version} builds for {', '.join([*named, CURRENT])}, the GPU at hand", fix=fix
    )
