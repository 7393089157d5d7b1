"""Layers whose results have sizes that depend on data, and random numbers."""

from __future__ import annotations

import json

import pytest
import torch
from core_programs import Symbols, exported, fake_inputs, network_over

from torchkiln_core import InternalError, Interpreter, Network, from_record, to_record
from torchkiln_core.layers import NMS, BoxFormat, NonZero, Quantize, RandomNormal, RandomUniform, Shuffle
from torchkiln_core.size import sizes_of

I32, I64 = torch.int32, torch.int64


def _with_count(symbols: Symbols) -> tuple[Network, torch.SymInt]:
    count = symbols.env.create_unbacked_symint()
    torch._check(count >= 0)
    return symbols.network(), count


def test_non_zero_has_the_programs_symbol():
    symbols = Symbols({"n": 5})
    net, count = _with_count(symbols)
    x = net.input("x", torch.float32, [net.symbolic_int(symbols.size("n")), 3])
    before = symbols.state()
    indices = net.add(NonZero(I64, count), x)
    net.output("y", indices)
    assert symbols.state() == before
    assert (indices.dtype, indices.shape) == (I64, (2, count.node.expr))
    record, tensors = to_record(net)
    again = from_record(json.loads(json.dumps(record)), tensors)
    assert str(again) == str(net)
    values = torch.tensor([[0.0, -0.0, 2.0], [float("nan"), 0.0, 1.0]])
    for network in (net, again):
        [found] = Interpreter(network)(values)
        assert found.tolist() == [[0, 1, 1], [2, 0, 2]]


def test_a_count_is_needed_for_inference_only():
    net, _ = _with_count(Symbols({"n": 5}))
    with pytest.raises(InternalError, match="NonZero: expected the count of its results"):
        net.add(NonZero(I64), net.input("x", torch.float32, [3]))
    assert NonZero(I32).run(torch.tensor([True, False, True])).tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [(NonZero(I64), (), "of rank 1 or more, got torch.int64 of rank 0"), (NonZero(torch.int8), (2,), "expected int32 or int64")],
)
def test_non_zero_refuses(layer, shape, message):
    with pytest.raises(InternalError, match=message):
        layer.run(torch.ones(shape))


BOXES = torch.tensor([[[0.0, 0, 2, 2], [2, 2, 0, 0.1], [3, 3, 4, 4], [0, 0, 1, 2]]])
SCORES = torch.tensor([[[0.5, 0.1], [0.9, 0.0], [0.7, 0.8], [0.6, 0.3]]])


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        # Box 1 hides box 0 (0.95 of it); box 3 has half of it.
        (NMS(4, 0.6, 0.2, I64), [[0, 0, 1], [0, 1, 2], [0, 0, 2], [0, 0, 3], [0, 1, 3]]),
        (NMS(4, 0.4, 0.2, I64), [[0, 0, 1], [0, 1, 2], [0, 0, 2], [0, 1, 3]]),
        (NMS(1, 0.6, 0.2, I64), [[0, 0, 1], [0, 1, 2]]),
        (NMS(4, 0.6, 0.75, I32), [[0, 0, 1], [0, 1, 2]]),
        (NMS(4, 0.6, 0.2, I64, box_limit=3), [[0, 0, 1], [0, 1, 2], [0, 0, 2]]),
        (NMS(4, 0.6, 2.0, I64), []),
    ],
)
def test_nms(layer, expected):
    selected, count = layer.run(BOXES, SCORES)
    assert selected.dtype is layer.dtype
    assert (selected.tolist(), tuple(selected.shape)) == (expected, (len(expected), 3))
    assert (count.dtype, count.item()) == (I32, len(expected))


def test_nms_by_centres_and_per_class():
    lower, upper = BOXES[..., :2].minimum(BOXES[..., 2:]), BOXES[..., :2].maximum(BOXES[..., 2:])
    centred = torch.cat(((lower + upper) / 2, upper - lower), -1)
    expected, _ = NMS(4, 0.6, 0.2, I64).run(BOXES, SCORES)
    assert torch.equal(expected, NMS(4, 0.6, 0.2, I64, BoxFormat.CENTER_SIZES).run(centred, SCORES)[0])
    assert torch.equal(expected, NMS(4, 0.6, 0.2, I64).run(BOXES.unsqueeze(2).expand(1, 4, 2, 4), SCORES)[0])


def test_nms_infers():
    symbols = Symbols({"n": 5})
    net, count = _with_count(symbols)
    size = net.symbolic_int(symbols.size("n"))
    operands = net.input("boxes", torch.float32, [size, 7, 4]), net.input("scores", torch.float32, [size, 7, 3])
    selected, found = net.add_many(NMS(2, 0.5, 0.1, I32, count=count), *operands)
    assert (selected.dtype, selected.shape, found.dtype, found.shape) == (I32, (count.node.expr, 3), I32, ())


@pytest.mark.parametrize(
    ("boxes", "scores", "message"),
    [
        (torch.ones(1, 3, 4), torch.ones(1, 4, 2), r"expected boxes for scores of \[1, 4, 2\], got \[1, 3, 4\]"),
        (torch.ones(1, 3, 5), torch.ones(1, 3, 2), r"expected boxes \[B, N, 4\]"),
        (torch.ones(1, 3, 4).half(), torch.ones(1, 3, 2), "expected operands of one dtype"),
        (torch.ones(1, 3, 4).bfloat16(), torch.ones(1, 3, 2).bfloat16(), "does not take torch.bfloat16"),
    ],
)
def test_nms_refuses(boxes, scores, message):
    with pytest.raises(InternalError, match=message):
        NMS(2, 0.5, 0.1, I64).run(boxes, scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_random_numbers_have_their_distribution(dtype):
    torch.manual_seed(0)
    uniform = RandomUniform(-1.0, 3.0, dtype).run([2, 5000]).float()
    assert -1 <= uniform.min() < -0.9
    assert 2.9 < uniform.max() <= 3
    assert abs(uniform.mean() - 1) < 0.06
    normal = RandomNormal(0.5, 2.0, dtype).run([10000]).float()
    assert abs(normal.mean() - 0.5) < 0.1
    assert abs(normal.std() - 2) < 0.1
    assert normal.unique().numel() > 1000


def test_fp8_saturates():
    values = torch.tensor([1e4, -1e4, 448.0, 0.0625, float("nan")])
    result = Quantize(torch.float8_e4m3fn).run(values, torch.tensor(1.0)).float()
    assert result[:4].tolist() == [448.0, -448.0, 448.0, 0.0625]
    assert result[4].isnan()


def test_int8_rounds_ties_to_even():
    values = torch.tensor([0.5, 1.5, 2.5, -0.5, 300.0, -300.0])
    assert Quantize(torch.int8).run(values, torch.tensor(1.0)).tolist() == [0, 2, 2, 0, 127, -128]


class _Positions(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)


def test_the_count_is_that_of_an_exported_call():
    program = exported(_Positions(), (torch.ones(4, 3),), ({0: torch.export.Dim.DYNAMIC},))
    [call] = [node for node in program.graph.nodes if node.target is torch.ops.aten.nonzero.default]
    found = call.meta["val"]
    net = network_over(*fake_inputs(program))
    indices = net.add(Shuffle(first=(1, 0)), net.add(NonZero(I64, found.shape[0]), net.inputs[0]))
    assert (indices.dtype, indices.shape) == (found.dtype, sizes_of(found.shape))
