"""``torch.ops.torchkiln.run_plan``: a plan as an operator of torch, for programs that are exported, serialized or traced."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from torchkiln_core import InternalError, Plan, PlanError
from torchkiln_runtime.engine import TensorRTEngine
from torchkiln_runtime.kiln_file.fields import dump_json, parse_json
from torchkiln_runtime.kiln_file.plan_record import read_plan, write_plan
from torchkiln_runtime.loader import TensorRTLoader

_SCHEMA = "run_plan(Tensor[] inputs, Tensor plan, str meta, SymInt[] sizes) -> Tensor[]"


def plan_meta(plan: Plan) -> str:
    """The ``meta`` argument of the operator: all of a plan but its data, as JSON."""
    return dump_json(write_plan(plan, "plan")).decode("ascii")


class _LoadedPlans:
    """Engines of plan tensors, by device; they go when the tensor goes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines = WeakTensorKeyDictionary()

    def engine(self, data: torch.Tensor, meta: str, device: torch.device) -> TensorRTEngine:
        with self._lock:
            engines: dict[tuple[str, torch.device], TensorRTEngine] = self._engines.setdefault(data, {})  # type: ignore[no-untyped-call]
            engine = engines.get((meta, device))
            if engine is None:
                engine = engines[meta, device] = TensorRTLoader(device).load(_read(data, meta))
            return engine


def _read(data: torch.Tensor, meta: str) -> Plan:
    return read_plan(parse_json(meta.encode(), "meta of run_plan"), data)


def _device_of(inputs: Sequence[torch.Tensor]) -> torch.device:
    return inputs[0].device if inputs else torch.device("cuda", torch.cuda.current_device())


_loaded = _LoadedPlans()


def _run_plan(inputs: list[torch.Tensor], plan: torch.Tensor, meta: str, sizes: list[int]) -> list[torch.Tensor]:
    if inputs and inputs[0].device.type != "cuda":
        raise PlanError(
            f"run_plan: expected inputs on an NVIDIA GPU, got {inputs[0].device}", fix="move the inputs, or use the reference engine"
        )
    outputs = _loaded.engine(plan, meta, _device_of(inputs))(*inputs)
    actual = [size for tensor in outputs for size in tensor.shape]
    # A negative size stands for one that is known only after the run.
    if len(actual) != len(sizes) or any(size != expected >= 0 for size, expected in zip(actual, sizes, strict=True)):
        raise InternalError(f"run_plan: expected output sizes {list(sizes)}, got {actual}")
    return list(outputs)


def _fake_run_plan(inputs: list[torch.Tensor], plan: torch.Tensor, meta: str, sizes: list[torch.SymInt | int]) -> list[torch.Tensor]:
    bindings = _read(torch.empty(0, dtype=torch.uint8, device="meta"), meta).outputs
    if sum(len(binding.shape) for binding in bindings) != len(sizes):
        raise InternalError(f"run_plan: expected {sum(len(binding.shape) for binding in bindings)} output sizes, got {len(sizes)}")
    device = inputs[0].device if inputs else torch.device("cuda")
    rest = iter(sizes)
    outputs = []
    for binding in bindings:
        shape = [_known(next(rest)) for _ in binding.shape]
        outputs.append(torch.empty(shape, dtype=binding.dtype, device=device))
    return outputs


def _known(size: torch.SymInt | int) -> torch.SymInt | int:
    if isinstance(size, int) and size < 0:
        return torch.library.get_ctx().new_dynamic_size()
    return size


def _define() -> torch.library.Library:
    library = torch.library.Library("torchkiln", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    library.impl("run_plan", _run_plan, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake("torchkiln::run_plan", _fake_run_plan, lib=library)
    return library


_library = _define()
"""Owns the operator: torch removes it when this object goes."""
