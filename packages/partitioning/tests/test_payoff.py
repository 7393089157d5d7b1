"""Which engine segments pay: the border cost model, calls that experts place, and the table of numbers."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import flop_registry

from torchkiln_core.errors import PartitionError
from torchkiln_core.options import Options, PartitionOptions
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_core.rejection import Rejection
from torchkiln_partitioning import CostModel, LevelPartitioner, describe

X = (torch.rand(4, 4) + 1,)


def turns(x):
    """Two calls, ``lgamma``, six calls."""
    x = torch.lgamma(x.sin().cos())
    return x.sin().cos().sin().cos().sin().cos()


def rules(partition):
    return {item.node: item.rule for item in partition.rejections}


def options(**fields):
    return PartitionOptions(**{"min_block_size": 1, "border_cost": "on"} | fields)


def test_an_engine_that_costs_more_than_it_saves_runs_in_pytorch(capture, oracle, check, kinds):
    partition = LevelPartitioner(options()).partition(capture(turns, X), oracle("lgamma"))
    assert kinds(partition) == ["torch", "engine"]
    assert rules(partition) == {"sin": "border-cost", "cos": "border-cost", "lgamma": "no-converter"}
    model = CostModel()
    [message] = {item.message for item in partition.rejections if item.rule == "border-cost"}
    assert f"{2 * model.call_us:.0f} us in PyTorch" in message
    assert f"{model.engine_us + model.input_us + model.output_us:.0f} us in an engine" in message
    check(partition, *X)


@pytest.mark.parametrize("fields", [{"border_cost": "off"}, {"border_cost": "auto"}, {"border_cost": "auto", "min_block_size": 2}])
def test_asking_for_small_engines_does_not_ask_the_model(capture, oracle, kinds, fields):
    partition = LevelPartitioner(options(**fields)).partition(capture(turns, X), oracle("lgamma"))
    assert kinds(partition) == ["engine", "torch", "engine"]


def test_large_tensors_pay_for_a_border(capture, oracle, kinds):
    with torch.device("meta"):
        large = torch.empty(8192, 8192)
    partition = LevelPartitioner(options()).partition(capture(turns, (large,)), oracle("lgamma"))
    assert kinds(partition) == ["engine", "torch", "engine"]


@pytest.mark.parametrize(
    ("dtype", "allowed", "kind"),
    [
        (torch.float32, {}, "torch"),
        (torch.float32, {"tf32_engines": True}, "engine"),
        (torch.float32, {"tf32_convolutions": False}, "engine"),
        (torch.float32, {"tf32_convolutions": False, "tf32_matrices": True}, "engine"),
        (torch.float16, {}, "engine"),
    ],
)
def test_convolutions_run_where_tf32_is_allowed_to_them(capture, oracle, kinds, dtype, allowed, kind):
    weight, x = torch.rand(64, 64, 3, 3, dtype=dtype), torch.rand(8, 64, 56, 56, dtype=dtype)

    def layers(x, weight):
        for _ in range(2):
            x = torch.conv2d(x, weight, padding=1).relu().mul(0.5)
        return torch.lgamma(x)

    partition = LevelPartitioner(options(), model=CostModel(**allowed)).partition(capture(layers, (x, weight)), oracle("lgamma"))
    assert kinds(partition)[0] == kind


@pytest.mark.parametrize(("allowed", "kind"), [({}, "engine"), ({"tf32_matrices": True}, "torch")])
def test_matrix_products_run_where_tf32_is_allowed_to_them(capture, oracle, kinds, allowed, kind):
    def layers(x):
        for _ in range(3):
            x = (x @ x).relu()
        return torch.lgamma(x)

    program = capture(layers, (torch.rand(2048, 2048),))
    assert kinds(LevelPartitioner(options(), model=CostModel(**allowed)).partition(program, oracle("lgamma")))[0] == kind


def test_many_results_do_not_pay(capture, oracle, kinds):
    def fan(x):
        parts = [torch.lgamma(x * (index + 1)) for index in range(8)]
        return torch.stack([part.exp() for part in parts]).sum(0)

    program = capture(fan, X)
    assert kinds(LevelPartitioner(options(border_cost="off")).partition(program, oracle("lgamma"))) == ["engine", "torch", "engine"]
    default = LevelPartitioner().partition(program, oracle("lgamma"))
    # Eight products with eight results: less than a launch is saved per result, so the model's constants decide, not the count.
    model = CostModel()
    pays = 8 * model.call_us > model.engine_us + model.input_us + 8 * model.output_us
    assert (kinds(default)[0] == "engine") == pays


def test_a_rearranged_border_costs_its_copy(capture, oracle):
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    partition = LevelPartitioner(options(border_cost="off")).partition(capture(lambda x: torch.lgamma(x.sin()), (x,)), oracle("lgamma"))
    work = describe(partition)[0].work
    assert work.rearranged == 2
    assert work.rearranged_bytes == 2 * x.nbytes
    plain = LevelPartitioner(options(border_cost="off")).partition(
        capture(lambda x: torch.lgamma(x.sin()), (x.contiguous(),)), oracle("lgamma")
    )
    assert CostModel().engine_time_us(work) > CostModel().engine_time_us(describe(plain)[0].work) + 2 * CostModel().call_us


def test_engines_that_save_less_than_a_program_costs_do_not_pay(capture, oracle, kinds):
    def function(x):
        for _ in range(4):
            x = x.sin().cos()
        return torch.lgamma(x)

    model = CostModel()
    saved_us = 8 * model.call_us - (model.engine_us + model.input_us + model.output_us)
    program = capture(function, X)
    assert kinds(LevelPartitioner(options()).partition(program, oracle("lgamma"))) == ["engine", "torch"]
    # With a model of fewer calls the engine would pay by itself, but not the program around it.
    short = capture(lambda x: torch.lgamma(x.sin().cos().sin()), X)
    assert 0 < 3 * model.call_us - (model.engine_us + model.input_us + model.output_us) < model.program_us < saved_us
    partition = LevelPartitioner(options()).partition(short, oracle("lgamma"))
    assert kinds(partition) == ["torch"]
    assert {item.rule for item in partition.rejections} == {"border-cost", "no-converter"}
    assert any("what a compiled program takes besides" in item.message for item in partition.rejections)
    assert kinds(LevelPartitioner(options(node_overrides=(("sin", "engine"),))).partition(short, oracle("lgamma"))) == ["engine", "torch"]


def test_the_table_shows_the_numbers(capture, oracle, tmp_path):
    texts = []
    LevelPartitioner(options(partition_report=texts.append)).partition(capture(turns, X), oracle("lgamma"))
    [text] = texts
    assert "PyTorch (border-cost)" in text
    assert sum(line.rstrip().endswith("sin_1") and "engine" in line for line in text.splitlines()) == 1
    path = tmp_path / "numbers.txt"
    LevelPartitioner(options(partition_report=str(path))).partition(capture(turns, X), oracle("lgamma"))
    assert path.read_text() == text + "\n"
    with pytest.raises(PartitionError, match="partition_report: expected a file that can be written"):
        LevelPartitioner(options(partition_report=str(tmp_path))).partition(capture(turns, X), oracle("lgamma"))


def test_the_table_shows_engines_that_everything_must_be(capture, oracle):
    texts = []
    LevelPartitioner(PartitionOptions(require_full_compilation=True, partition_report=texts.append)).partition(capture(turns, X), oracle())
    [row] = [line for line in texts[0].splitlines() if "calls" not in line and "model:" not in line]
    assert row.split()[0] == "9"
    assert row.split()[-2:] == ["engine", "sin"]


def test_flops(capture, oracle):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(4, 6, 3, padding=1, groups=2)
            self.linear = torch.nn.Linear(5, 7)

        def forward(self, image, rows):
            mixed = torch.einsum("nd,md->nm", rows, rows)
            attended = torch.nn.functional.scaled_dot_product_attention(rows[None], rows[None], rows[None])
            return self.conv(image).relu(), self.linear(rows), rows @ rows.t(), mixed, attended, rows.t().reshape(-1)

    partition = LevelPartitioner(options()).partition(capture(Model(), (torch.rand(2, 4, 8, 8), torch.rand(3, 5))), oracle())
    flops = [describe(partition)[0].flops]
    products = {name: count for name, count in flops[0].items() if count and not name.startswith("relu")}
    assert products["conv2d" if "conv2d" in products else "convolution"] == 2 * 2 * 6 * 8 * 8 * (4 // 2) * 9
    assert products["linear" if "linear" in products else "addmm"] == 2 * 3 * 7 * 5
    assert products["matmul" if "matmul" in products else "mm"] == 2 * 3 * 3 * 5
    assert flops[0]["relu"] == 2 * 6 * 8 * 8
    assert sum(products.values()) >= 2 * 3 * 3 * 5 * 4


def test_flops_of_a_call_with_several_results(capture, oracle):
    def gradients(image, weight, gradient):
        settings = ([0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
        return torch.ops.aten.convolution_backward(gradient, image, weight, *settings)[:2]

    program = capture(gradients, (torch.rand(1, 3, 8, 8), torch.rand(4, 3, 3, 3), torch.rand(1, 4, 6, 6)))
    (segment,) = describe(LevelPartitioner(options()).partition(program, oracle()))
    assert segment.flops["convolution_backward"] == 2 * (2 * 4 * 6 * 6 * 3 * 3 * 3)


@pytest.mark.parametrize(("lengths", "heads"), [((11, 32), (4, 4)), ((11, 11), (8, 2))])
def test_flops_of_attention_kernels(oracle, lengths, heads):
    """torch's formulas for them read tensors and expect heads in front of rows."""
    aten = torch.ops.aten
    mode = FakeTensorMode()
    with mode:
        query = torch.empty(2, lengths[0], heads[0], 8, dtype=torch.half, device="cuda")
        key = torch.empty(2, lengths[1], heads[1], 8, dtype=torch.half, device="cuda")

    def attend(query, key):
        rows = aten._flash_attention_forward(query, key, key, None, None, *lengths, 0.0, False, False)
        biased = aten._efficient_attention_forward(query, key, key, None, None, None, *lengths, 0.0, 0)
        return rows[0], biased[0]

    with mode:
        module = make_fx(attend)(query, key)
    inputs = tuple(ProgramInput(node.name, InputKind.USER) for node in module.graph.find_nodes(op="placeholder"))
    names = ("_flash_attention_forward", "_efficient_attention_forward")
    partition = LevelPartitioner(options()).partition(Program(module, inputs, {}, {}), oracle(*names))
    (segment,) = describe(partition)
    assert segment.segment.kind == "torch"
    assert rules(partition) == dict.fromkeys(names, "no-converter")
    products = 2 * 2 * lengths[0] * heads[0] * lengths[1] * (8 + 8)
    assert segment.flops == dict.fromkeys(names, products)


def test_flops_by_a_formula_of_a_user(capture, oracle, monkeypatch):
    def raw(gradient, image, weight, *args, out_val, **kwargs):
        return gradient.numel() + image.shape[1] + weight.dim() + len(out_val)

    def failing(*args, **kwargs):
        raise KeyError("not known")

    def gradients(image, weight, gradient):
        settings = ([0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
        return torch.ops.aten.convolution_backward(gradient, image, weight, *settings)[:2]

    program = capture(gradients, (torch.rand(1, 3, 8, 8), torch.rand(4, 3, 3, 3), torch.rand(1, 4, 6, 6)))
    for formula, count in ((raw, 4 * 6 * 6 + 3 + 4 + 3), (failing, 3 * 8 * 8)):
        monkeypatch.setitem(flop_registry, torch.ops.aten.convolution_backward, formula)
        (segment,) = describe(LevelPartitioner(options()).partition(program, oracle()))
        assert segment.flops["convolution_backward"] == count


def test_experts_place_single_calls(capture, oracle, check, kinds):
    program = capture(turns, X)
    kept = LevelPartitioner(options(node_overrides=(("sin", "engine"),))).partition(program, oracle("lgamma"))
    assert kinds(kept) == ["engine", "torch", "engine"]
    check(kept, *X)
    moved = LevelPartitioner(options(node_overrides=(("cos*", "torch"), ("cos", "engine")))).partition(program, oracle("lgamma"))
    assert {node for node, rule in rules(moved).items() if rule == "node-override"} == {"cos_1", "cos_2", "cos_3"}
    check(moved, *X)


def test_an_impossible_place_is_an_error(capture, oracle):
    with pytest.raises(PartitionError, match=r"expected lgamma in an engine.*no-converter"):
        LevelPartitioner(options(node_overrides=(("lgamma", "engine"),))).partition(capture(turns, X), oracle("lgamma"))


def test_a_failed_build_is_reported_where_it_was_forced(capture, oracle):
    refused = {"sin": Rejection("aten.sin.default", "sin", "build-failed", "no kernel")}
    with pytest.raises(PartitionError, match="no kernel"):
        LevelPartitioner(options(node_overrides=(("sin", "engine"),)), refused).partition(capture(turns, X), oracle("lgamma"))


def test_a_name_that_matches_nothing_is_an_error(capture, oracle):
    with pytest.raises(ValueError, match=r"no call of the lowered program is named 'lgama'; did you mean 'lgamma'\?"):
        LevelPartitioner(options(node_overrides=(("lgama", "torch"),))).partition(capture(turns, X), oracle("lgamma"))


def test_keywords():
    given = Options.from_keywords({"node_overrides": {"sin": "torch"}, "partition_report": print}).partition
    assert given.node_overrides == (("sin", "torch"),)
    for wrong, message in (({"node_overrides": {"sin": "gpu"}}, "'engine' or 'torch'"), ({"border_cost": "never"}, "auto, on, off")):
        with pytest.raises(ValueError, match=message):
            Options.from_keywords(wrong)
    with pytest.raises(TypeError, match="node_overrides"):
        Options.from_keywords({"node_overrides": {"sin": 1}})
