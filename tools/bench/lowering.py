"""Time that one core of the CPU works for each lowering pass, on real models and on synthetic graphs of many calls.

    python tools/bench/lowering.py [--model llama-32] [--calls 50000] [--check]

With ``--check`` the exit status says whether the whole pipeline is close to linear: the large synthetic graph within ``LIMIT_S``, and
at most ``GROWTH`` times the time of one of a tenth of its calls.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from torchkiln.capture import capture, export_model
from torchkiln_converters import default_registry
from torchkiln_core import InputKind, Program, ProgramInput
from torchkiln_lowering import AtenLowering, Pass, Pipeline, default_pipeline

LIMIT_S = 30.0
GROWTH = 13.0
aten = torch.ops.aten


def _captured(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Program:
    model.eval()
    return capture(export_model(model, args, kwargs, None), model).program


def _resnet50() -> Program:
    import torchvision

    return _captured(torchvision.models.resnet50(weights=None), torch.randn(1, 3, 224, 224))


def _bert_base() -> Program:
    from transformers import BertConfig, BertModel

    return _captured(BertModel(BertConfig()), torch.randint(0, 30522, (1, 128)))


def _llama(layers: int) -> Program:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1000,
        max_position_embeddings=128,
        use_cache=False,
    )
    return _captured(LlamaForCausalLM(config), torch.randint(0, 1000, (1, 64)))


MODELS: Mapping[str, Callable[[], Program]] = {"resnet50": _resnet50, "bert-base": _bert_base, "llama-32": lambda: _llama(32)}


def synthetic(calls: int) -> Program:
    """A graph of ``calls`` calls with something for every pass: equal calls, copies, casts, transposes, constants, patterns, norms."""
    graph = torch.fx.Graph()
    mode = FakeTensorMode()
    x = graph.placeholder("x")
    x.meta["val"] = mode.from_tensor(torch.randn(8, 16))

    def call(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = graph.call_function(target, args, kwargs)
        fakes = torch.fx.node.map_arg((args, kwargs), lambda source: source.meta["val"])
        with mode:
            node.meta["val"] = target(*fakes[0], **fakes[1])
        return node

    value, count = x, 0
    while count < calls:
        begin = len(graph.nodes)
        twice = call(aten.add.Tensor, call(aten.mul.Tensor, value, value), call(aten.mul.Tensor, value, value))
        copied = call(aten.clone.default, call(aten.t.default, call(aten.t.default, twice)))
        cast = call(aten._to_copy.default, call(aten._to_copy.default, copied, dtype=torch.float64), dtype=torch.float32)
        gate = call(aten.add.Tensor, call(aten.erf.default, call(aten.div.Tensor, cast, 2**0.5)), 1)
        gelu = call(aten.mul.Tensor, call(aten.mul.Tensor, cast, 0.5), gate)
        masked = call(aten.add.Tensor, gelu, call(aten.triu.default, call(aten.full.default, [8, 16], 1.0)))
        normed = call(aten.layer_norm.default, call(aten.view.default, call(aten.view.default, masked, [128]), [8, 16]), [16])
        value = call(aten.log_sigmoid.default, call(aten.dropout.default, normed, 0.5, False))
        count += len(graph.nodes) - begin
    graph.output((value,)).meta["val"] = (value.meta["val"],)
    return Program(torch.fx.GraphModule({}, graph), (ProgramInput("x", InputKind.USER),), {}, {})


def timed(program: Program) -> dict[str, float]:
    """Seconds of each pass, of decomposition and of the whole stage."""
    times: dict[str, float] = {}

    def watched(item: Pass) -> Pass:
        def run(module: torch.fx.GraphModule) -> bool:
            begun = time.process_time()
            changed = item.run(module)
            times[item.name] = time.process_time() - begun
            return changed

        return Pass(item.name, run, item.removes, item.after)

    pipeline = Pipeline(tuple(watched(item) for item in default_pipeline().passes))
    registry = default_registry()
    begun = time.process_time()
    lowered = AtenLowering(pipeline=pipeline).lower(program, registry)
    times["whole stage"] = time.process_time() - begun
    times["calls after"] = _calls(lowered)
    return times


def _calls(program: Program) -> int:
    return sum(node.op == "call_function" for node in program.module.graph.nodes)


def report(name: str, program: Program) -> float:
    """Prints the times of one program; returns that of the whole stage in seconds."""
    before = _calls(program)
    times = timed(program)
    sys.stdout.write(f"{name}: {before} calls to {int(times.pop('calls after'))}\n")
    for step, seconds in times.items():
        sys.stdout.write(f"  {step:24} {seconds * 1e3:10.1f} ms\n")
    sys.stdout.flush()
    return times["whole stage"]


def main() -> int:
    """Prints a table per program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "none"], action="append")
    parser.add_argument("--calls", type=int, default=50_000)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, make in MODELS.items():
        if options.model is None or name in options.model:
            report(name, make())
    small = report(f"synthetic {options.calls // 10}", synthetic(options.calls // 10))
    large = report(f"synthetic {options.calls}", synthetic(options.calls))
    sys.stdout.write(f"{options.calls} calls: {large:.1f} s, {large / small:.1f} times the time of a tenth of them\n")
    return int(options.check and (large > LIMIT_S or large / small > GROWTH))


if __name__ == "__main__":
    raise SystemExit(main())
