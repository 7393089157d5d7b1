"""``torch.compile(backend="torchkiln")`` as PyTorch's users know it: graph breaks, structures, recompilation, threads, training."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._inductor

import torchkiln
from torchkiln.backend import torchkiln as torchkiln_backend
from torchkiln.modes import MODES, options_of
from torchkiln_converters import Support, converter
from torchkiln_converters.support import FLOATS
from torchkiln_core import ConversionError, Network, Options, Value
from torchkiln_testing import OpClass, assert_same

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, torch.Tensor]:
        return {"y": torch.relu(self.linear(x)) * scale, "x": x}


def test_the_backend_is_listed() -> None:
    assert "torchkiln" in torch._dynamo.list_backends()


def test_nothing_of_torchkiln_need_be_imported() -> None:
    script = """
import sys, torch, torch._dynamo
assert "torchkiln" in torch._dynamo.list_backends()
assert "torchkiln" not in sys.modules
x = torch.randn(3)
assert torch.equal(torch.compile(torch.relu, backend="torchkiln")(x), torch.relu(x))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_structures_and_keywords(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    net, x = Net().eval(), torch.randn(5, 4)
    compiled = jit(net)
    with torch.no_grad():
        for scale in (2.0, 3.0, 2.0):
            got = compiled(x, scale=scale)
            assert_same(net(x, scale=scale)["y"], got["y"], OpClass.MATMUL)
            assert got["x"] is x
    assert [segment.kind for segment in reports[0].segments] == ["engine"]
    # The second value makes the number an input of the graph; the third compiles nothing.
    assert len(reports) == 2


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: list[torch.Tensor]


def test_dataclasses_go_in_and_come_out(jit: Callable[..., Any]) -> None:
    def swap(pair: Pair) -> Pair:
        return Pair(pair.right[0] * 2, [pair.left + 1])

    pair = Pair(torch.randn(2), [torch.randn(3)])
    got = jit(swap)(pair)
    assert isinstance(got, Pair)
    assert_same(pair.right[0] * 2, got.left)
    assert_same(pair.left + 1, got.right[0])


class Bag(collections.OrderedDict[str, torch.Tensor]):
    """A mapping with attributes, as models return them."""

    def __getattr__(self, name: str) -> torch.Tensor:
        return self[name]


def test_mappings_with_attributes_come_out(jit: Callable[..., Any]) -> None:
    def split(x: torch.Tensor) -> Bag:
        return Bag(negative=torch.relu(-x), positive=torch.relu(x))

    x = torch.randn(5)
    got = jit(split, fullgraph=True)(x)
    assert isinstance(got, Bag)
    assert_same(dict(split(x)), dict(got))


def test_a_module_that_compiles_itself(reports: list[torchkiln.Report]) -> None:
    net, x = Net().eval(), torch.randn(5, 4)
    with torch.no_grad():
        expected = net(x)["y"]
        net.compile(backend="torchkiln", options={"engine": "reference", "min_block_size": 1, "on_report": reports.append})
        assert_same(expected, net(x)["y"], OpClass.MATMUL)
    assert len(reports) == 1


def test_a_function_as_a_decorator(jit: Callable[..., Any]) -> None:
    @jit
    def gelu(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)

    x = torch.randn(7)
    assert_same(torch.nn.functional.gelu(x), gelu(x), OpClass.POINTWISE)


def breaks(x: torch.Tensor) -> torch.Tensor:
    x = torch.sin(x) + 1
    torch._dynamo.graph_break()
    return torch.cos(x) * 2


def test_a_graph_break_makes_two_graphs(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    x = torch.randn(4)
    assert_same(breaks(x), jit(breaks)(x), OpClass.POINTWISE)
    assert len(reports) == 2


def test_every_graph_of_a_function_is_compiled_once(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    def three(x: torch.Tensor) -> dict[str, Any]:
        y = torch.sin(x)
        torch._dynamo.graph_break()
        largest = (y * 2).max().item()
        torch._dynamo.graph_break()
        return {"scaled": y / largest, "largest": largest, "rest": [torch.exp(y), x]}

    compiled, x = jit(three), torch.randn(4)
    for _ in range(3):
        got, expected = compiled(x), three(x)
        assert_same([expected["scaled"], expected["rest"]], [got["scaled"], got["rest"]], OpClass.POINTWISE)
        assert got["largest"] == pytest.approx(expected["largest"])
    assert len(reports) == 3


def test_fullgraph_raises_on_a_graph_break_and_on_nothing_else(jit: Callable[..., Any]) -> None:
    x = torch.randn(4)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        jit(breaks, fullgraph=True)(x)


@converter(torch.ops.aten.erf.default, Support(dtypes=FLOATS))
def broken_erf(net: Network, self: Value) -> Value:
    raise ConversionError("no such layer")


def only_calls_in_pytorch(x: torch.Tensor) -> torch.Tensor:
    return torch.lgamma(x.abs() + 1) + 1


def no_calls(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x, 3


def views_only(x: torch.Tensor) -> torch.Tensor:
    return x[1:].view(-1, 1)


def a_failing_converter(x: torch.Tensor) -> torch.Tensor:
    return torch.erf(torch.relu(x) + 1) * 2


def writes_its_argument(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.sum() + torch.sin(x)


def sizes_from_values(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)[x > 0] + 1


@pytest.mark.filterwarnings("ignore::torchkiln.FallbackWarning")
@pytest.mark.parametrize(
    "function",
    [only_calls_in_pytorch, no_calls, views_only, a_failing_converter, writes_its_argument, sizes_from_values],
    ids=lambda function: function.__name__,
)
def test_fullgraph_takes(jit: Callable[..., Any], function: Callable[..., Any]) -> None:
    x = torch.randn(5)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = jit(function, fullgraph=True, options={"converters": [broken_erf]})
        assert_same(function(x.clone()), compiled(x.clone()), OpClass.REDUCTION)


def test_fullgraph_takes_sizes_outside_of_the_range(jit: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    compiled = jit(torch.nn.ReLU(), fullgraph=True, dynamic=True)
    for rows in (3, 5, 5000, 6000):
        x = torch.randn(rows, 2)
        assert_same(torch.relu(x), compiled(x))
    assert len([record for record in caplog.records if "this size runs in PyTorch" in record.getMessage()]) == 1


def test_control_flow_in_python_compiles_each_branch_once(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    def branch(x: torch.Tensor, up: bool) -> torch.Tensor:
        return x + 1 if up else x * 3

    compiled, x = jit(branch), torch.randn(3)
    for up in (True, False, True, False):
        assert_same(branch(x, up), compiled(x, up))
    assert len(reports) == 2


def test_disable_runs_eager(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    x = torch.randn(4)
    assert_same(breaks(x), jit(breaks, disable=True)(x))
    assert reports == []


def test_a_reset_compiles_again(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    compiled, x = jit(torch.nn.ReLU()), torch.randn(4)
    compiled(x)
    compiled(x)
    assert len(reports) == 1
    torch.compiler.reset()
    assert_same(torch.relu(x), compiled(x))
    assert len(reports) == 2


def test_dynamic_sizes_compile_once_more_and_no_more(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    compiled = jit(torch.nn.Softplus())
    for rows in (3, 5, 7, 11, 2):
        x = torch.randn(rows, 4)
        assert_same(torch.nn.functional.softplus(x), compiled(x), OpClass.POINTWISE)
    assert len(reports) == 2


@pytest.mark.parametrize(("dynamic", "graphs"), [(True, 1), (False, 3)])
def test_dynamic_is_respected(jit: Callable[..., Any], reports: list[torchkiln.Report], dynamic: bool, graphs: int) -> None:
    compiled = jit(torch.nn.ReLU(), dynamic=dynamic)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        assert_same(torch.relu(x), compiled(x))
    assert len(reports) == graphs


def test_marked_dimensions_are_dynamic_at_once(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    compiled = jit(torch.nn.ReLU())
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
        assert_same(torch.relu(x), compiled(x))
    assert len(reports) == 1


def test_recompilations_are_bounded(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    def scaled(x: torch.Tensor, text: str) -> torch.Tensor:
        return x * len(text) + 1

    x = torch.randn(3)
    with torch._dynamo.config.patch(recompile_limit=4):
        compiled = jit(scaled)
        for count in range(8):
            assert_same(scaled(x, "a" * count), compiled(x, "a" * count))
    assert len(reports) == 4


def test_threads_share_one_compilation(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    net = Net().eval()
    compiled = jit(net)
    with torch.no_grad():
        compiled(torch.randn(5, 4))
    gate = threading.Barrier(4)

    def call(seed: int) -> None:
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        gate.wait()
        with torch.no_grad():
            for _ in range(5):
                assert_same(net(x)["y"], compiled(x)["y"], OpClass.MATMUL)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))
    assert len(reports) == 1


def test_threads_that_call_for_the_first_time_at_once_are_right(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    """Dynamo lets every thread that found no code compile, one after the other; what is compiled later serves all that follow."""
    net = Net().eval()
    compiled = jit(net)
    gate = threading.Barrier(3)

    def call(seed: int) -> None:
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        gate.wait()
        with torch.no_grad():
            assert_same(net(x)["y"], compiled(x)["y"], OpClass.MATMUL)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(call, range(3)))
    first = len(reports)
    assert 1 <= first <= 3
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(call, range(3)))
    assert len(reports) == first


def test_threads_that_compile_at_once_are_right(jit: Callable[..., Any]) -> None:
    functions = [torch.nn.ReLU(), torch.nn.GELU(), torch.nn.SiLU(), torch.nn.Tanh()]
    compiled = [jit(function) for function in functions]
    gate = threading.Barrier(4)

    def call(index: int) -> None:
        x = torch.randn(6)
        gate.wait()
        assert_same(functions[index](x), compiled[index](x), OpClass.POINTWISE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))


def test_options_are_those_of_compile_with_the_same_checks() -> None:
    x, defaults = torch.randn(3), {item.name: item.default for item in Options.fields()}
    assert_same(torch.relu(x), torch.compile(torch.nn.ReLU(), backend="torchkiln", options={**defaults, "engine": "reference"})(x))
    for wrong in ({"min_block_size": 0}, {"engine": "cuda"}, {"allow_tf32": "yes"}, {"deterministic": True, "benchmark": True}):
        with pytest.raises((ValueError, TypeError)) as ahead:
            torchkiln.compile(torch.nn.ReLU(), (x,), **wrong)
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as just_in_time:
            torch.compile(torch.nn.ReLU(), backend="torchkiln", options=wrong)(x)
        assert type(just_in_time.value.inner_exception) is type(ahead.value)
        assert str(just_in_time.value.inner_exception) == str(ahead.value)
        torch.compiler.reset()


def test_an_unknown_option_is_refused_with_a_suggestion(jit: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match=r"unknown option 'min_blok_size': did you mean 'min_block_size'"):
        jit(torch.nn.ReLU(), options={"min_blok_size": 3})(torch.randn(3))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_every_mode_of_torch_is_known(mode: str) -> None:
    x = torch.randn(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchkiln.FallbackWarning)
        assert_same(torch.relu(x), torch.compile(torch.nn.ReLU(), backend="torchkiln", mode=mode)(x))
    # "lite" tells inductor to compile less, which is not what a compiler of engines can do.
    assert set(torch._inductor.list_mode_options()) - {"lite"} <= set(MODES)


def test_autotuning_measures() -> None:
    assert {mode for mode, options in MODES.items() if options.get("benchmark")} == {"max-autotune", "max-autotune-no-cudagraphs"}


def test_the_backend_wants_to_be_called_by_torch_compile() -> None:
    with pytest.raises(torchkiln.ExportError, match=r"(?s)expected a call by torch\.compile.*fix: call torchkiln\.compile"):
        torchkiln_backend(torch.fx.symbolic_trace(torch.nn.ReLU()), [torch.randn(3)])


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(Exception, match=r"mode: expected one of 'default', 'reduce-overhead'.*got 'fast'"):
        torch.compile(torch.nn.ReLU(), backend="torchkiln", mode="fast")(torch.randn(3))


def test_options_add_to_what_a_mode_stands_for() -> None:
    added = options_of("max-autotune", {"optimization_level": 2, "min_block_size": 1})
    assert added == {"optimization_level": 2, "benchmark": True, "min_block_size": 1}
    for mode in MODES:
        Options.from_keywords(options_of(mode, {}))


def test_training_gives_the_gradients_of_eager(jit: Callable[..., Any]) -> None:
    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.silu(x @ weight) ** 2).mean()

    grads = []
    for function in (loss, jit(loss)):
        torch.manual_seed(0)
        x, weight = torch.randn(4, 5, requires_grad=True), torch.randn(5, 3, requires_grad=True)
        function(x, weight).backward()
        grads.append((x.grad, weight.grad))
    assert_same(grads[0], grads[1], OpClass.MATMUL)


def test_mutation_of_arguments_is_seen(jit: Callable[..., Any]) -> None:
    def count(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x.sum())
        return total * 2

    x, total, twin = torch.randn(3), torch.zeros(()), torch.zeros(())
    compiled = jit(count)
    for _ in range(3):
        assert_same(count(x, twin), compiled(x, total), OpClass.REDUCTION)
        assert_same(twin, total, OpClass.REDUCTION)


@torch.library.custom_op("torchkiln_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_custom_operator_stays_in_pytorch(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(twice(torch.relu(x) + 1) - 3)

    x = torch.randn(4)
    assert_same(program(x), jit(program, fullgraph=True)(x))
    [report] = reports
    assert [segment.kind for segment in report.segments] == ["engine", "torch", "engine"]
    assert [rejection.rule for rejection in report.rejections] == ["no-converter"]
