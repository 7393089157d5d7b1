"""What stays in PyTorch and why."""

import pytest
import torch

from torchkiln_core.errors import InternalError, PartitionError
from torchkiln_core.options import PartitionOptions
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_partitioning import BodyPartitioner, LevelPartitioner

X = (torch.rand(2, 3),)


def rules(partition):
    return {item.node: item.rule for item in partition.rejections}


@pytest.mark.parametrize(
    "entry",
    [
        "aten.relu",
        "torch.ops.aten.relu.default",
        "aten::relu",
        "aten.relu.default",
        torch.ops.aten.relu,
        torch.ops.aten.relu.default,
    ],
)
def test_executed_ops(capture, oracle, check, entry):
    program = capture(lambda x: x.sin().relu() * 2, X)
    partition = LevelPartitioner(PartitionOptions(min_block_size=1, torch_executed_ops=(entry,))).partition(program, oracle())
    assert rules(partition) == {"relu": "torch-executed-op"}
    check(partition, *X)


def test_executed_op_of_one_overload(capture, oracle):
    program = capture(lambda x: (x * x).sin() * 2 + x.sum(), X)
    partition = LevelPartitioner(PartitionOptions(min_block_size=1, torch_executed_ops=("aten.add.Scalar",))).partition(program, oracle())
    assert rules(partition) == {}


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("aten.rellu", "aten.relu"),
        ("relu", "aten.relu"),
        (torch.relu, "torch.ops.aten.relu"),
        ("aten.relu.Tensor", "aten.relu"),
        (lambda x: x, "an operator of torch.ops"),
    ],
)
def test_unknown_operator(entry, hint):
    with pytest.raises(ValueError, match=hint):
        LevelPartitioner(PartitionOptions(torch_executed_ops=(entry,)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.nn.ReLU()

    def forward(self, x):
        return self.act(x.sin())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.last = torch.nn.Sigmoid()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("layers.0", {"sin", "relu"}),
        ("layers.*", {"sin", "relu", "sin_1", "relu_1"}),
        ("layers.*.act", {"relu", "relu_1"}),
        (torch.nn.ReLU, {"relu", "relu_1"}),
        (Block, {"sin", "relu", "sin_1", "relu_1"}),
        ("last", {"sigmoid"}),
        (torch.nn.Module, {"sin", "relu", "sin_1", "relu_1", "sigmoid"}),
    ],
)
def test_executed_modules(capture, oracle, check, entry, kept):
    options = PartitionOptions(min_block_size=1, torch_executed_modules=(entry,))
    partition = LevelPartitioner(options).partition(capture(Net(), X), oracle())
    if entry is torch.nn.Module:  # base classes are known for classes of imported modules only
        kept = set(rules(partition)) | {"relu", "relu_1", "sigmoid"}
    assert rules(partition) == dict.fromkeys(kept, "torch-executed-module")
    check(partition, *X)


@pytest.mark.parametrize(
    "path", ["L['self'].layers[0].act", "L['m'].layers.0.act", "L['self']._modules['layers']._modules['0']._modules['act']", "layers.0.act"]
)
def test_module_names_of_other_captures(capture, oracle, path):
    program = capture(lambda x: x.relu().sin(), X)
    for node in program.module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
        node.meta["nn_module_stack"] = {"a": (path, torch.nn.ReLU)}
    for entry in ("layers.0.*", torch.nn.ReLU):
        options = PartitionOptions(min_block_size=1, torch_executed_modules=(entry,))
        assert rules(LevelPartitioner(options).partition(program, oracle())) == {"relu": "torch-executed-module"}


@pytest.mark.parametrize(("entry", "hint"), [("layers.0.atc", "layers.0.act"), (torch.nn.ReLU6, "ReLU"), ("zzz", "modules with calls: ")])
def test_unknown_module(capture, oracle, entry, hint):
    with pytest.raises(ValueError, match=hint):
        LevelPartitioner(PartitionOptions(torch_executed_modules=(entry,))).partition(capture(Net(), X), oracle())


def test_require_full_compilation_lists_every_rejection(capture, oracle):
    with pytest.raises(PartitionError) as caught:
        LevelPartitioner(PartitionOptions(require_full_compilation=True)).partition(capture(Net(), X), oracle("sigmoid", "sin"))
    text = str(caught.value)
    assert "aten.sigmoid.default (sigmoid)" in text
    assert "aten.sin.default (sin_1)" in text
    assert "test_classify.py" in text


def test_require_full_compilation_has_no_minimum(capture, oracle, kinds):
    program = capture(lambda x: x.sin(), X)
    partition = LevelPartitioner(PartitionOptions(require_full_compilation=True)).partition(program, oracle())
    assert kinds(partition) == ["engine"]


def test_random_calls_keep_their_order(capture, oracle, check):
    def function(x):
        first = torch.bernoulli(x.sin().abs())
        second = torch.rand_like(x)
        return second * 2 + first.relu()

    partition = LevelPartitioner(PartitionOptions(min_block_size=1)).partition(capture(function, X), oracle())
    assert rules(partition) == {"bernoulli": "effect", "rand_like": "effect"}
    order = [name for segment in partition.segments for name in segment.calls if "bernoulli" in name or "rand" in name]
    assert order == ["aten.bernoulli.default", "aten.rand_like.default"]
    check(partition, *X)


def test_attention_without_dropout_is_no_effect(capture, oracle, kinds):
    args = (torch.rand(1, 2, 4, 8),)
    program = capture(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x), args)
    assert kinds(LevelPartitioner().partition(program, oracle())) == ["engine"]
    program = capture(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5), args)
    assert set(rules(LevelPartitioner().partition(program, oracle())).values()) >= {"effect"}


def test_unused_random_call_still_draws(capture, oracle, check):
    def function(x):
        torch.rand_like(x)
        return x.sin() + torch.rand_like(x)

    program = capture(function, X)
    partition = LevelPartitioner(PartitionOptions(min_block_size=1)).partition(program, oracle())
    drawn = [name for segment in partition.segments for name in segment.calls if "rand" in name]
    assert len(drawn) == len([node for node in program.module.graph.nodes if "rand" in str(node.target)])
    check(partition, *X)


def test_complex_and_sparse_stay_in_pytorch(capture, oracle, check):
    partition = LevelPartitioner(PartitionOptions(min_block_size=1)).partition(
        capture(lambda x: torch.fft.fft(x.sin()).abs().cos(), X), oracle()
    )
    assert set(rules(partition).values()) == {"complex"}
    assert [segment.kind for segment in partition.segments] == ["engine", "torch", "engine"]
    check(partition, *X)


def test_calls_on_several_devices_stay_in_pytorch(capture, oracle):
    program = capture(lambda x, y: (x.sin() + 1, y.cos() * 2, x + y.sum()), (*X, torch.rand(2, 3)))
    fake = next(iter(program.module.graph.nodes)).meta["val"].fake_mode
    other = torch.device("cuda", 0)
    with fake:
        moved = {name: torch.empty(2, 3, device=other) for name in ("args_0", "sin", "add")}
    for node in program.module.graph.nodes:
        if node.name in moved:
            node.meta["val"] = moved[node.name]
    partition = LevelPartitioner(PartitionOptions(min_block_size=1)).partition(program, oracle())
    found = rules(partition)
    assert found["add_1"] == "device"
    assert found["cos"] == "device"
    assert "sin" not in found


@pytest.mark.parametrize(("refused", "reason"), [((), None), (("full",), "device")])
def test_scalar_constants_on_the_cpu_are_embedded(capture, oracle, refused, reason):
    program = capture(lambda x: torch.where(x > 0, x, torch.full((), 2.0)), X)
    fake = next(iter(program.module.graph.nodes)).meta["val"].fake_mode
    for node in program.module.graph.nodes:
        if isinstance(node.meta.get("val"), torch.Tensor) and node.name != "full":
            with fake:
                node.meta["val"] = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype, device=torch.device("cuda", 0))
    partition = LevelPartitioner(PartitionOptions(min_block_size=1)).partition(program, oracle(*refused))
    assert rules(partition).get("where") == reason


def test_tensor_attributes_are_refused(capture, oracle):
    program = capture(lambda x: x.sin(), X)
    graph = program.module.graph
    program.module.register_buffer("constant", torch.rand(2, 3))
    sin = next(node for node in graph.nodes if node.name == "sin")
    with graph.inserting_before(sin):
        attribute = graph.get_attr("constant")
        attribute.meta["val"] = sin.meta["val"]
    sin.replace_input_with(sin.args[0], attribute)
    with pytest.raises(InternalError, match="constant is a tensor attribute"):
        LevelPartitioner().partition(program, oracle())


class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.nn.ReLU()

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda t: self.act(t) + 1, lambda t: t - 1, (x,))


def program_with_module_in_a_branch(capture):
    program = capture(Branching(), X)
    for node in program.module.true_graph_0.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
        node.meta["nn_module_stack"] = {"": ("", Branching), "act": ("act", torch.nn.ReLU)}
    return program


def test_a_module_may_have_calls_in_a_branch_only(capture, oracle):
    program = program_with_module_in_a_branch(capture)
    options = PartitionOptions(min_block_size=1, torch_executed_modules=("act",))
    assert rules(LevelPartitioner(options).partition(program, oracle())) == {}
    with pytest.raises(ValueError, match="did you mean 'act'"):
        LevelPartitioner(PartitionOptions(torch_executed_modules=("akt",))).partition(program, oracle())


def test_bodies_are_steered_by_what_matches_in_them(capture, oracle):
    program = program_with_module_in_a_branch(capture)
    body = program.module.true_graph_0
    inside = Program(body, tuple(ProgramInput(node.name, InputKind.USER) for node in body.graph.find_nodes(op="placeholder")), {}, {})
    options = PartitionOptions(min_block_size=1, torch_executed_modules=("act", "elsewhere"), node_overrides=(("sum_1", "torch"),))
    assert rules(BodyPartitioner(options).partition(inside, oracle())) == {"relu": "torch-executed-module"}


def test_a_body_that_is_one_engine_must_pay(capture, oracle, kinds):
    program = capture(lambda x: x.sin().cos(), X)
    assert kinds(LevelPartitioner().partition(program, oracle())) == ["engine"]
    assert set(rules(BodyPartitioner().partition(program, oracle())).values()) == {"min-block-size"}
    options = PartitionOptions(min_block_size=1, border_cost="on")
    assert set(rules(BodyPartitioner(options).partition(program, oracle())).values()) == {"border-cost"}
