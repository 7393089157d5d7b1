"""The device that a program runs on, which need not have an input or a weight that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torchkiln
from torchkiln import stages
from torchkiln.engines import device_of
from torchkiln_core import BuildError
from torchkiln_testing import OpClass, assert_same

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "made on a GPU": (lambda: torch.eye(4, device="cuda") @ torch.ones(4, 4, device="cuda") * 2, (), "cuda"),
    "only made on a GPU": (lambda: torch.ones(5, device="cuda"), (), "cuda"),
    "of a number": (lambda size: torch.full((size,), 2.0, device="cuda").sin(), (3,), "cuda"),
    "moved to a GPU": (lambda x: x.to("cuda").sin() * 2, (torch.ones(3),), "cuda"),
    "made on the CPU": (lambda: torch.eye(4) @ torch.ones(4, 4) * 2, (), "cpu"),
    "of an input on the CPU": (lambda x: x.sin() * 2, (torch.ones(3),), "cpu"),
}


def run(entry: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a program returns once it is compiled through one of the entries."""
    options: dict[str, Any] = {"engine": "tensorrt", "min_block_size": 1}
    if entry == "compile":
        return torchkiln.compile(function, args, **options)(*args)
    return torch.compile(function, backend="torchkiln", options=options)(*args)


@pytest.mark.parametrize(
    ("compute", "devices", "expected"),
    [
        (lambda: torch.ones(5, device="cuda:1") * 2, (), torch.device("cuda:1")),
        (lambda: torch.var_mean(torch.ones(5, device=GPU).cpu()), (), GPU),
        (lambda x: x.cpu() * 2, (GPU,), GPU),
        (lambda x, y: (x * 2, y * 2), (CPU, GPU), GPU),
        (lambda x: x * 2, (CPU,), CPU),
        (lambda: torch.ones(5) * 2, (), CPU),
    ],
)
def test_the_first_gpu_of_a_graph(compute: Callable[..., Any], devices: tuple[torch.device, ...], expected: torch.device) -> None:
    with FakeTensorMode():
        module = make_fx(compute)(*(torch.empty(3, device=device) for device in devices))
    assert device_of(module) == expected


def test_results_in_a_tuple_say_it() -> None:
    with FakeTensorMode():
        fake = torch.empty(3, device=GPU)
    graph = torch.fx.Graph()
    graph.placeholder("size").meta["val"] = 3
    graph.call_function(torch.ops.aten.unbind.int).meta["val"] = [fake, fake]
    graph.output(())
    assert device_of(torch.fx.GraphModule({}, graph)) == GPU


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("entry", ["compile", "backend"])
def test_both_entries_ask_for_the_engine_of_that_device(name: str, entry: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None) -> None:
    asked: list[str] = []

    def choose(options: Any, build: Any, device: torch.device) -> None:
        asked.append(device.type)
        raise BuildError("nothing is built here")

    monkeypatch.setattr(stages, "choose_engine", choose)
    function, args, expected = PROGRAMS[name]
    with pytest.raises(BuildError, match="nothing is built here"):
        run(entry, function, args)
    assert asked == [expected]


def test_a_program_on_the_cpu_is_still_refused() -> None:
    with pytest.raises(BuildError, match=r"the program runs on cpu|not installed|no TensorRT library"):
        torchkiln.compile(lambda: torch.ones(5) * 2, (), engine="tensorrt")


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, (_, _, place) in PROGRAMS.items() if place == "cuda"])
@pytest.mark.parametrize("entry", ["compile", "backend"])
def test_on_tensorrt(name: str, entry: str, fresh_dynamo: None) -> None:
    function, args, _ = PROGRAMS[name]
    got = run(entry, function, args)
    assert got.device.type == "cuda"
    assert_same(function(*args), got, OpClass.MATMUL)
