"""Sweeps PyTorch's own database of operators through torchkiln, and compares every sample with eager PyTorch.

    python tools/opinfo.py --out opinfo.json [--dtypes float32,float16] [--only add,cat] [--limit 2] [--shard 0/4] [--build] [--thorough]
    python tools/opinfo.py --out opinfo.json --device cuda --engine tensorrt --every 5
    python tools/opinfo.py --from-json opinfo.json other.json

A sample is one call of an operator of ``torch.testing._internal.common_methods_invocations.op_db``. It is captured as ``torch.compile``
captures a graph of one call (AOTAutograd, without Dynamo; every size symbolic with ``--capture dynamic``), or with ``--capture export`` by
``torchkiln.compile``; then lowered, divided with ``min_block_size=1``, converted, run, and compared: structure, dtypes, shapes, values, and
what became of the arguments. Outcomes:

- ``engine``: equal, and every call ran in an engine
- ``refused``: equal, with the refusals named
- ``closer``: a half result that is not equal to eager's, but equal to what eager gives in float32: eager rounded on its way
- ``rounded``: a result that is not equal to eager's, but as near to the exact one as roundings of the arguments and of what is computed on
  the way move that: an engine rounds the scores of attention to half, and where these are in the hundreds, another key wins
- ``different``: not equal to eager
- ``crashed``: an error from torchkiln, or while the compiled program ran
- ``not captured``: torch itself cannot trace the call
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from opinfo_call import HALVES, Capture, NotCaptured, SampleCall, TooSlow, compile_call, has_tensors, time_limit
from opinfo_roundings import is_within_roundings
from torch.utils._pytree import tree_leaves, tree_map

from torchkiln_testing import OpClass, assert_same

DTYPES = ("float32", "float16", "bfloat16", "int64", "bool")
OUTCOMES = ("engine", "refused", "closer", "rounded", "different", "crashed", "not captured")
BAD = ("different", "crashed")
UNFILLED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators whose results have no particular values."""
SEEDED = {"torch.ops.aten._flash_attention_forward": (2,), "torch.ops.aten._efficient_attention_forward": (2, 3)}
"""Which results of some operators are the state of a generator, which without dropout nobody writes."""
_PRODUCTS = re.compile(r"mm|matmul|dot|conv|attention|linear|addr|einsum|bilinear|bicubic|_mv|cdist|_gru|_lstm|\bmv")
_GATES = re.compile(r"gelu|silu|mish|hardswish")
_SUMS = re.compile(r"sum|mean|prod|softmax|norm|var|std|pool|upsample|grid|cum|embedding_bag|interp|index_add|scatter|trace|fft")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one sample; ``refusals`` are ``operator [rule]``."""

    op: str
    dtype: str
    index: int
    sample: str
    outcome: str
    refusals: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """How samples are compiled: where, by which capture, with which options of ``torchkiln.compile``."""

    device: str
    capture: Capture
    options: dict[str, Any]
    seconds: int = 120


def check(name: str, call: SampleCall, place: tuple[str, int], settings: Settings) -> Result | None:
    """The outcome of a sample, or ``None`` where eager PyTorch fails or no tensor on the device is involved.

    Args:
        name: Of the operator.
        call: The sample.
        place: Its dtype and index.
        settings: How it is compiled.
    """
    dtype, index = place

    def result(outcome: str, refusals: Iterable[str] = (), detail: str = "") -> Result:
        return Result(name, dtype, index, str(call), outcome, tuple(refusals), detail[:2000])

    try:
        with time_limit(settings.seconds):
            expected = call.eager()
    except (Exception, TooSlow):  # noqa: BLE001 - whatever a kernel raises, there is nothing to compare with
        return None
    if not has_tensors(expected) or not _is_on(settings.device, (call.leaves, expected)):
        return None
    refusals: list[str] = []
    try:
        with time_limit(settings.seconds):
            compiled = compile_call(call, settings.options, settings.capture)
            got = compiled()
            calls = [target for report in compiled.reports for segment in report.segments for target in segment.calls]
            refusals = sorted({f"{item.target} [{item.rule}]: {item.message}" for report in compiled.reports for item in report.rejections})
    except NotCaptured as error:
        return result("not captured", detail=str(error))
    except (Exception, TooSlow) as error:  # noqa: BLE001 - to find whatever is raised is the purpose
        return result("crashed", refusals, f"{type(error).__name__}: {error}")
    try:
        assert_same(_comparable(name, call, expected), _comparable(name, call, got), class_of([name, *calls]))
    except (AssertionError, RuntimeError) as error:
        if _divides_by_zero(call):
            return None
        return result(_excuse(call, (expected, got), getattr(torch, dtype), class_of([name, *calls])) or "different", refusals, str(error))
    in_torch = any(segment.kind == "torch" and segment.calls for report in compiled.reports for segment in report.segments)
    return result("refused" if in_torch or refusals else "engine", refusals)


def _is_on(device: str, values: Any) -> bool:
    """Whether a tensor among them is on a device of that type: of numbers alone some operators make tensors on the host."""
    return any(isinstance(leaf, torch.Tensor) and leaf.device.type == torch.device(device).type for leaf in tree_leaves(values))


def class_of(calls: Sequence[str]) -> OpClass:
    """The loosest class of an operator and of those that it was lowered to: bicubic resizing becomes products and sums of elements."""
    names = " ".join(calls)
    if _PRODUCTS.search(names):
        return OpClass.MATMUL
    if _GATES.search(names):
        return OpClass.GATE
    return OpClass.REDUCTION if _SUMS.search(names) else OpClass.POINTWISE


def _excuse(call: SampleCall, outcomes: tuple[Any, Any], dtype: torch.dtype, op_class: OpClass) -> str | None:
    """Why a result that is not equal to eager's is as good."""
    expected, got = outcomes
    if dtype in HALVES and _is_closer(call, expected, got, op_class):
        return "closer"
    return "rounded" if dtype.is_floating_point and is_within_roundings(call, got, dtype, op_class) else None


def _divides_by_zero(call: SampleCall) -> bool:
    """Whether the host refuses what a GPU has no number for either, but computes."""
    try:
        call.on("cpu").eager()
    except RuntimeError as error:
        return "ZeroDivisionError" in str(error)
    return False


def _is_closer(call: SampleCall, expected: Any, got: Any, op_class: OpClass) -> bool:
    """Whether a half result is what eager gives when it computes in float32 and rounds at the end."""

    def rounded(value: Any, like: Any) -> Any:
        return value.to(like.dtype) if isinstance(value, torch.Tensor) else value

    try:
        assert_same(tree_map(rounded, call.widened().eager(), expected), got, op_class)
    except (AssertionError, RuntimeError, TypeError, ValueError):
        return False
    return True


def _comparable(name: str, call: SampleCall, outcome: tuple[Any, list[torch.Tensor]]) -> Any:
    """What PyTorch promises of a result: nothing of memory that was not written, no order of equal elements; sparse ones made dense."""
    outcome = tree_map(lambda leaf: leaf.to_dense() if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided else leaf, outcome)
    if name in UNFILLED:
        return tree_map(lambda leaf: torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else leaf, outcome)
    if name in SEEDED:
        results, inputs = outcome
        return [None if place in SEEDED[name] else result for place, result in enumerate(results)], inputs
    if name != "topk":
        return outcome
    (values, indices), inputs = outcome
    (source, _, *rest), keywords = call.arguments()
    return values, source.gather(keywords.get("dim", rest[0] if rest else -1), indices), inputs


def sweep(options: argparse.Namespace, settings: Settings) -> Iterator[Result]:
    """The results of the chosen samples."""
    count = 0
    for op, dtype in chosen(options):
        name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        source = op.reference_inputs if options.thorough else op.sample_inputs
        torch.manual_seed(0)
        samples = source(settings.device, getattr(torch, dtype), requires_grad=False)
        for index, sample in enumerate(islice(samples, options.limit or None)):
            count += 1
            if count % options.every:
                continue
            found = check(name, SampleCall.of(op.op, sample), (dtype, index), settings)
            if found is not None:
                yield found


def database() -> list[Any]:
    """PyTorch's database of operators. It imports numba where that is installed, and numba a package ``coverage``: not the tool beside."""
    before, here = list(sys.path), Path(__file__).resolve().parent
    sys.path[:] = [path for path in before if Path(path).resolve() != here]
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    finally:
        sys.path[:] = before
    found: list[Any] = op_db
    return found


def chosen(options: argparse.Namespace) -> list[tuple[Any, str]]:
    """Operators with a dtype, in the database's order; every n-th operator where a shard is asked for."""
    op_db = database()
    part, parts = map(int, options.shard.split("/"))
    only = set(filter(None, options.only.split(",")))
    unknown = only - {op.name for op in op_db}
    if unknown:
        raise ValueError(f"--only: no operators {', '.join(sorted(unknown))}")
    ops: list[Any] = [op for op in op_db if not only or op.name in only][part::parts]
    kind = torch.device(options.device).type
    return [(op, dtype) for op in ops for dtype in options.dtypes.split(",") if getattr(torch, dtype) in op.supported_dtypes(kind)]


def summary(results: Sequence[Result]) -> str:
    """A table of outcomes by dtype, then every bad sample, then the most frequent refusals."""
    lines = [f"{'dtype':10}" + "".join(f"{outcome:>14}" for outcome in OUTCOMES) + f"{'samples':>10}"]
    for dtype in [*dict.fromkeys(result.dtype for result in results), "all"]:
        mine = [result for result in results if dtype in (result.dtype, "all")]
        counts = Counter(result.outcome for result in mine)
        lines.append(f"{dtype:10}" + "".join(f"{counts[outcome]:14}" for outcome in OUTCOMES) + f"{len(mine):10}")
    for outcome in BAD:
        bad = [result for result in results if result.outcome == outcome]
        lines += [
            f"{outcome}: {item.op} {item.dtype} #{item.index} {item.sample[:160]}: {' '.join(item.detail.split())[:240]}" for item in bad
        ]
    rules = Counter(refusal.split(":")[0] for result in results for refusal in result.refusals)
    lines += [f"refused {number}: {rule}" for rule, number in rules.most_common(25)]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, help="the JSON file to write")
    made.add_argument("--from-json", type=Path, nargs="+", default=[], help="print the table of earlier runs")
    made.add_argument("--dtypes", default=",".join(DTYPES))
    made.add_argument("--only", default="", help="operators, separated by commas")
    made.add_argument("--limit", type=int, default=0, help="samples per operator and dtype; 0: all")
    made.add_argument("--every", type=int, default=1, help="check every n-th sample only")
    made.add_argument("--shard", default="0/1", help="i/n: the i-th of n parts of the operators")
    made.add_argument("--thorough", action="store_true", help="reference inputs, which are many more")
    made.add_argument("--build", action="store_true", help="build plans too, for sm_89; needs no GPU")
    made.add_argument("--capture", default="static", choices=[item.value for item in Capture])
    made.add_argument("--device", default="cpu")
    made.add_argument("--engine", default="reference", choices=("reference", "tensorrt"))
    made.add_argument("--seconds", type=int, default=120, help="the longest that a sample may take")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when a sample differs or crashes."""
    options = parser().parse_args(arguments)
    results: list[Result] = []
    if options.from_json:
        for path in options.from_json:
            results += [Result(**{**row, "refusals": tuple(row["refusals"])}) for row in json.loads(path.read_text())["results"]]
    else:
        results = run(options)
    sys.stdout.write(summary(results) + "\n")
    return 1 if any(result.outcome in BAD for result in results) else 0


def run(options: argparse.Namespace) -> list[Result]:
    """Sweeps, and writes the results as they come."""
    settings = Settings(
        options.device,
        Capture(options.capture),
        {"engine": options.engine, "min_block_size": 1, **({"targets": ["sm_89"]} if options.build else {})},
        options.seconds,
    )
    results: list[Result] = []
    started = time.perf_counter()
    # Convolutions in TF32 would be no truth for float32.
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"), exact:
        for result in sweep(options, settings):
            results.append(result)
            if result.outcome in BAD:
                sys.stdout.write(f"{result.outcome}: {result.op} {result.dtype} #{result.index} {result.sample[:160]}\n")
                sys.stdout.flush()
            if options.out is not None and len(results) % 50 == 0:
                write(options.out, results, time.perf_counter() - started)
    if options.out is not None:
        write(options.out, results, time.perf_counter() - started)
    return results


def write(path: Path, results: Sequence[Result], seconds: float) -> None:
    """The results as JSON."""
    counts = Counter(result.outcome for result in results)
    record = {"torch": torch.__version__, "seconds": seconds, "counts": counts, "results": [asdict(result) for result in results]}
    path.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    faulthandler.enable()  # a kernel that crashes the process says where
    raise SystemExit(main())
