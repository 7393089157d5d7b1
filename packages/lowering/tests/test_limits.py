"""Every limit of every decomposition keeps some call whole, and is named for it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from lowering_programs import Oracle, whole
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._pytree import tree_map

from torchkiln_core.call import OpCall
from torchkiln_lowering import AtenLowering, Decompositions, Pass, Pipeline, standard_decompositions
from torchkiln_lowering.decompositions.table import always
from torchkiln_lowering.limits import LoweredOracle
from torchkiln_lowering.metadata import KEPT

aten = torch.ops.aten
NO_CONVERTERS = Oracle(base=frozenset())
SIZE = object()
"""Stands for a symbolic size."""


@dataclass(frozen=True)
class Case:
    """A call: arguments by name, which results are read, and whether sizes are symbolic."""

    target: Any
    arguments: dict[str, Any] = field(default_factory=dict)
    read: tuple[int, ...] = (0,)
    dynamic: bool = False

    @staticmethod
    def of(target: Any, *args: Any) -> Case:
        return Case(target, dict(zip((item.name for item in target._schema.arguments), args, strict=False)))

    def changed(self, /, **arguments: Any) -> Case:
        return replace(self, arguments={**self.arguments, **arguments})

    def cast(self, source: Callable[[torch.dtype], bool], dtype: torch.dtype) -> Case:
        convert = lambda item: item.to(dtype) if isinstance(item, torch.Tensor) and source(item.dtype) else item  # noqa: E731
        return replace(self, arguments=tree_map(convert, self.arguments))

    def call(self, model: Case) -> OpCall:
        """The call; where the operator itself refuses it, with the results of ``model``."""
        graph = torch.fx.Graph()
        value: Any = None
        fakes: dict[str, Any] = {}
        for case in (model, self):
            mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
            fakes = {
                name: tree_map(lambda item, case=case, mode=mode: case._fake(item, mode), item) for name, item in case.arguments.items()
            }
            try:
                with mode:
                    value = self.target(**fakes)
            except Exception:  # noqa: BLE001 -- whatever an operator raises
                assert value is not None, "the operator refuses the call that is to be taken"
        node = graph.call_function(self.target, (), tree_map(lambda item: self._placeholder(item, graph), fakes))
        node.meta["val"] = value
        if isinstance(value, (tuple, list)):
            picks = [graph.call_function(operator.getitem, (node, index)) for index in self.read]
            graph.output(tuple(picks))
        else:
            graph.output((node,))
        return OpCall.from_node(node)

    def _fake(self, item: Any, mode: FakeTensorMode) -> Any:
        if item is SIZE:
            return self._symbolic(torch.zeros(4000), mode).shape[0]
        if not isinstance(item, torch.Tensor):
            return item
        return self._symbolic(item, mode) if self.dynamic else mode.from_tensor(item, static_shapes=True)

    @staticmethod
    def _symbolic(item: torch.Tensor, mode: FakeTensorMode) -> Any:
        context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * item.dim())
        return mode.from_tensor(item, symbolic_context=context)

    @staticmethod
    def _placeholder(item: Any, graph: torch.fx.Graph) -> Any:
        if not isinstance(item, (torch.Tensor, torch.SymInt)):
            return item
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = item
        return node


def many(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A large tensor without memory."""
    return torch.zeros([1] * len(sizes), dtype=dtype).expand(sizes)


X, ROW, MANY = torch.rand(2, 3), torch.rand(3), many(5000)
PLACES, NUMBERS, TRUTHS = torch.zeros(3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
HEADS, IMAGE, VOLUME = torch.rand(1, 2, 3, 4), torch.rand(1, 2, 4, 6), torch.rand(1, 2, 4, 4, 4)
SCALE, ZERO = torch.ones(1), torch.zeros(1, dtype=torch.int32)
LSTM = [torch.rand(3, 1, 2), [torch.rand(1, 1, 2)] * 2, [torch.rand(8, 2)] * 2, False, 1, 0.0, False, False, False]
BAG = [X, PLACES, PLACES[:1]]
SHIFTS = [getattr(aten, name) for name in ("bitwise_left_shift", "bitwise_right_shift")]
LOGIC = [getattr(aten, name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")]
KERNELS = "flash_attention_for_cpu flash_attention efficient_attention cudnn_attention fused_attention_overrideable"
ATTENTION = [getattr(aten, f"_scaled_dot_product_{name}").default for name in KERNELS.split()]
ANTIALIAS = [
    getattr(aten, f"_upsample_{name}2d_aa").default
    for name in ("bilinear", "bicubic", "lanczos")
    if hasattr(aten, f"_upsample_{name}2d_aa")
]
ADAPTIVE = {
    1: [aten.adaptive_max_pool1d.default, aten.adaptive_avg_pool1d.default],
    2: [aten.adaptive_max_pool2d.default, aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default],
    3: [aten.adaptive_max_pool3d.default, aten.adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d.default],
}
PLANES = {1: IMAGE[0], 2: IMAGE, 3: VOLUME}

TAKEN = {
    case.target: case
    for case in (
        Case.of(aten.native_layer_norm.default, X, [3], None, None, 1e-5),
        Case.of(aten.native_group_norm.default, IMAGE, None, None, 1, 2, 24, 2, 1e-5),
        Case.of(aten.rms_norm.default, X, [3]),
        Case.of(aten._fused_rms_norm.default, X, [3], None, 1e-5),
        Case.of(aten._native_batch_norm_legit_no_training.default, X, None, None, ROW, ROW, 0.1, 1e-5),
        Case.of(aten._native_batch_norm_legit.no_stats, X, None, None, True, 0.1, 1e-5),
        Case.of(aten.batch_norm.default, X, None, None, ROW, ROW, False, 0.1, 1e-5, False),
        Case.of(aten.native_batch_norm.default, X, None, None, ROW, ROW, False, 0.1, 1e-5),
        *(
            Case.of(target, X, [1])
            for target in (aten.var.correction, aten.var_mean.correction, aten.std.correction, aten.logsumexp.default)
        ),
        *(Case.of(target, X, 1, False) for target in (aten._softmax.default, aten._log_softmax.default)),
        Case.of(aten._safe_softmax.default, X, 1),
        *(Case.of(target, HEADS, HEADS, HEADS) for target in ATTENTION[:2]),
        Case.of(ATTENTION[2], HEADS, HEADS, HEADS, None, False),
        Case.of(ATTENTION[3], HEADS, HEADS, HEADS, None, False),
        Case.of(ATTENTION[4], HEADS, HEADS, HEADS),
        Case.of(aten.scaled_dot_product_attention.default, HEADS, HEADS, HEADS),
        *(Case.of(getattr(aten, name).default, X) for name in ("log1p", "expm1", "softplus", "mish", "gelu", "exp2", "erfc")),
        Case.of(aten.log_sigmoid_forward.default, X),
        *(Case.of(target, X, X) for target in (aten.hypot.default, aten.copysign.Tensor, aten.logaddexp.default)),
        Case.of(aten.copysign.Scalar, X, 1.0),
        *(Case.of(target, X, 1) for target in (aten.cummax.default, aten.cummin.default, aten.logcumsumexp.default)),
        *(Case.of(target, X) for target in (aten.median.default, aten.nanmedian.default)),
        *(Case.of(target, ROW, 0) for target in (aten.median.dim, aten.nanmedian.dim)),
        Case.of(aten.kthvalue.default, ROW, 2),
        Case.of(aten.sort.default, MANY),
        Case.of(aten.sort.stable, MANY).changed(stable=True),
        Case.of(aten.topk.default, MANY, 4000),
        Case.of(aten.scatter_add.default, ROW, 0, PLACES, ROW),
        Case.of(aten.scatter_reduce.two, ROW, 0, PLACES, ROW, "sum"),
        Case.of(aten.scatter.reduce, ROW, 0, PLACES, ROW).changed(reduce="add"),
        Case.of(aten.scatter.value_reduce, ROW, 0, PLACES, 1.0).changed(reduce="add"),
        Case.of(aten.index_reduce.default, ROW, 0, PLACES, ROW, "prod"),
        Case.of(aten.index_add.default, ROW, 0, PLACES, ROW),
        *(Case.of(target, ROW, [PLACES], ROW, True) for target in (aten.index_put.default, aten._unsafe_index_put.default)),
        Case.of(aten.col2im.default, torch.rand(1, 4, 4), [3, 3], [2, 2], [1, 1], [0, 0], [1, 1]),
        Case.of(aten.one_hot.default, PLACES, 3),
        Case.of(aten.unfold.default, ROW, 0, 2, 1),
        Case.of(aten.diagonal_scatter.default, X, ROW[:2]),
        Case.of(aten.masked_scatter.default, X, TRUTHS, X),
        Case.of(aten.searchsorted.Tensor, ROW, X[0]),
        Case.of(aten.bucketize.Tensor, X, ROW),
        Case.of(aten._unsafe_masked_index.default, X, TRUTHS[0], [PLACES, PLACES], 0),
        Case.of(aten._cdist_forward.default, X, X, 1.0, None),
        Case.of(aten._pdist_forward.default, X, 2.0),
        *(Case.of(target, *BAG) for target in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)),
        *(Case.of(target, PLANES[rank], [2] * rank) for rank, targets in ADAPTIVE.items() for target in targets),
        Case.of(aten.max_pool2d_with_indices.default, IMAGE, [2, 2]),
        Case.of(aten.max_pool3d_with_indices.default, VOLUME, [2, 2, 2]),
        *(Case.of(target, IMAGE, [2, 3], False) for target in ANTIALIAS),
        *(Case.of(target, TRUTHS) for target in (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)),
        *(Case.of(target, TRUTHS, 0) for target in (aten.max.dim, aten.min.dim)),
        *(Case.of(packet.Tensor, NUMBERS, NUMBERS) for packet in (*LOGIC, *SHIFTS)),
        *(Case.of(packet.Scalar, NUMBERS, 3) for packet in LOGIC),
        *(Case.of(packet.Scalar_Tensor, 3, NUMBERS) for packet in (*LOGIC, *SHIFTS)),
        *(Case.of(packet.Tensor_Scalar, NUMBERS, 3) for packet in SHIFTS),
        *(Case.of(packet.Tensor, NUMBERS, NUMBERS) for packet in (aten.__lshift__, aten.__rshift__)),
        *(Case.of(packet.Scalar, NUMBERS, 3) for packet in (aten.__lshift__, aten.__rshift__)),
        Case.of(aten.fake_quantize_per_tensor_affine.default, X, 0.5, 0, 0, 255),
        Case.of(aten.fake_quantize_per_tensor_affine_cachemask.default, X, 0.5, 0, 0, 255),
        Case.of(aten.fake_quantize_per_tensor_affine.tensor_qparams, X, SCALE, ZERO, 0, 255),
        Case.of(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default, X, SCALE, ZERO, SCALE, 0, 255),
        Case.of(aten.fake_quantize_per_channel_affine.default, X, ROW, ZERO.expand(3), 1, 0, 255),
        Case.of(aten.fake_quantize_per_channel_affine_cachemask.default, X, ROW, ZERO.expand(3), 1, 0, 255),
        Case.of(aten.lstm.input, *LSTM),
        Case.of(aten.bilinear.default, X, X, torch.rand(5, 3, 3)),
        Case.of(aten._trilinear.default, X, torch.rand(5, 3, 3), X, [1, 3], [0], [1, 2], [2, 3]),
        Case.of(aten.mm.default, NUMBERS, NUMBERS.T),
        Case.of(aten.bmm.default, NUMBERS[None], NUMBERS.T[None]),
    )
}
"""A call of each operator that its decomposition takes."""


def _is_integer(dtype: torch.dtype) -> bool:
    return dtype in (torch.int32, torch.int64)


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def integers(case: Case) -> Case:
    return case.cast(_is_float, torch.int32)


def short_integers(case: Case) -> Case:
    return case.cast(lambda dtype: dtype.is_floating_point or _is_integer(dtype), torch.int16)


def dynamic(case: Case) -> Case:
    return replace(case, dynamic=True)


def all_read(case: Case) -> Case:
    return replace(case, read=(0, 1))


def wide(case: Case) -> Case:
    """Beyond every limit of sizes."""
    names = {"self", "index", "boundaries", "sorted_sequence"} & case.arguments.keys()
    changes = {name: many(1 << 14, dtype=case.arguments[name].dtype) for name in names}
    if "indices" in case.arguments:
        changes["indices"] = [many(1 << 14, dtype=torch.int64)]
    return case.changed(**changes)


def _set(**arguments: Any) -> Callable[[Case], Case]:
    return lambda case: case.changed(**arguments)


AT_MOST = "at the largest sizes that the program is for"
BROKEN: dict[str, Callable[[Case], Case]] = {
    "floating-point elements": integers,
    "that nobody reads a result but the first": all_read,
    "training=False and running statistics": _set(training=True),
    "at least one dimension": lambda case: case.changed(self=case.arguments["self"].flatten()[0]),
    "truth values of at least one dimension": lambda case: case.changed(self=TRUTHS[0, 0]),
    "known sizes of the dimensions that are reduced": dynamic,
    "dropout_p=0": _set(dropout_p=0.5),
    "a mask or is_causal, not both": lambda case: case.changed(
        is_causal=True, **{name: torch.zeros(3, 3) for name in MASKS if name in {item.name for item in case.target._schema.arguments}}
    ),
    "as many queries as keys where it is causal": _set(is_causal=True, query=HEADS[:, :, :2]),
    "a scale, or heads of a known width": dynamic,
    "known numbers of heads where they are shared": lambda case: dynamic(case.changed(enable_gqa=True, scale=1.0)),
    "heads that are not empty": _set(query=HEADS[..., :0], key=HEADS[..., :0], scale=1.0),
    "two tensors of one floating-point dtype": lambda case: case.changed(other=X.double()),
    "a result of float32, float16 or bfloat16": lambda case: case.cast(_is_float, torch.float64),
    "a known number": lambda case: case.changed(
        **{name: SIZE for name, item in case.arguments.items() if not isinstance(item, torch.Tensor)}
    ),
    "a known size of the dimension": dynamic,
    "floating-point, int32, int64 or bool elements": short_integers,
    "floating-point, int32 or int64 elements": short_integers,
    "known sizes": dynamic,
    "at least one element": _set(self=ROW[:0]),
    "at most 65536 elements, of float64 at most 7680": _set(self=many(70000)),
    "at least one element along the dimension": _set(self=ROW[:0]),
    "at most 65536 elements, of float64 at most 7680, along the dimension": _set(self=many(70000)),
    "that nobody reads its indices, which PyTorch leaves open among equal elements": all_read,
    "a known k, and that the dimension is known to have as many elements": _set(k=SIZE),
    "a k of at most 3840, which counts from the nearer end of a known size, or at most 65536 elements, of float64 at most 7680": _set(
        self=many(70000), k=30000
    ),
    "float32, float16, bfloat16, int32, int64 or bool elements": short_integers,
    "at most 65536 elements along the dimension": _set(self=many(70000)),
    "stable=True, or that nobody reads its indices, which PyTorch leaves open among equal elements": lambda case: all_read(
        replace(case, arguments={"self": MANY}) if case.target is aten.sort.default else case.changed(stable=False)
    ),
    "a known k, which is 1 where there are no dimensions": _set(k=SIZE),
    "float32, float16, bfloat16, int32 or int64 elements": short_integers,
    "real elements": lambda case: case.cast(_is_float, torch.complex64),
    f"at most 67108864 comparisons, of each place with each index, {AT_MOST}": wide,
    "indices of int32 or int64": _set(indices=[TRUTHS[0]]),
    "indices of neighbouring dimensions": _set(self=VOLUME[0], indices=[PLACES, None, PLACES]),
    "real numbers where they are added": _set(self=TRUTHS[0]),
    f"at most 4294967296 products of a column's element and a pixel, {AT_MOST}": _set(
        self=many(1, 4, 1 << 20), output_size=[1 << 10, 1 << 10]
    ),
    "a known number of classes": _set(num_classes=-1),
    "int32 or int64 elements": short_integers,
    "a diagonal of known length": dynamic,
    "a mask of bool": _set(mask=TRUTHS.to(torch.uint8)),
    "a source of known sizes, none of them 0": dynamic,
    "one dtype of sorted_sequence and what is looked for": _set(self=X[0].double()),
    "one dtype of boundaries and what is looked for": _set(self=X.double()),
    f"at most 67108864 comparisons with sorted_sequence, {AT_MOST}": wide,
    f"at most 67108864 comparisons with boundaries, {AT_MOST}": wide,
    "an index for every dimension": _set(indices=[PLACES, None]),
    "indices of as many dimensions as the mask": _set(mask=TRUTHS),
    "known sizes, none of them 0": dynamic,
    "one dtype of both": _set(x2=X.double()),
    "rows that are known not to be empty": lambda case: case.changed(
        **{name: X[:, :0] for name in ("x1", "x2", "self") if name in case.arguments}
    ),
    "numbers of rows that are known not to be 0, where distances come from a matrix product": _set(x2=X[:0], p=2.0, compute_mode=1),
    f"at most 67108864 differences, where distances do not come from a matrix product, {AT_MOST}": _set(
        x1=many(1 << 13, 3), x2=many(1 << 13, 3)
    ),
    "rows that are known to be more than one": _set(self=X[:1]),
    f"at most 2048 rows, {AT_MOST}": _set(self=many(2049, 3)),
    "a row of indices that is known not to be empty": _set(indices=PLACES[:0]),
    f"at most 67108864 elements of all bags, each with room for all indices, {AT_MOST}": _set(
        indices=many(1 << 13, dtype=torch.int64), offsets=many(1 << 13, dtype=torch.int64)
    ),
    "a known output_size without 0": lambda case: case.changed(output_size=[0] * len(case.arguments["output_size"])),
    "known sizes of the axes, but for those with one window, none of them 0": dynamic,
    "planes of known sizes that are not empty": dynamic,
    "windows, none of which lies in the padding alone": lambda case: case.changed(
        self=torch.rand([1] * case.arguments["self"].dim()), padding=[1], dilation=[2]
    ),
    "scales that lead to pixels of the image, and that are 1 where a size is kept": _set(output_size=[4, 6], scales_h=2.0, scales_w=2.0),
    "an output of more than one column, or of one row, or of as many rows as the input": _set(output_size=[2, 1]),
    "results of int32 or int64, of operands of those, of int8, uint8 or bool": short_integers,
    "at most 7 dimensions": _set(self=NUMBERS[(None,) * 6], other=NUMBERS),
    f"at most 67108864 bits, {AT_MOST}": _set(self=many(1 << 21, dtype=torch.int64), other=many(1, dtype=torch.int64)),
    "results of bool, int32 or int64": short_integers,
    "a known scale above 0 that float32 holds": _set(scale=1e-60),
    "a known zero point at most 16777216 from 0": _set(zero_point=1 << 25),
    "zero points of integers": lambda case: case.changed(zero_point=case.arguments["zero_point"].float()),
    "quant_min and quant_max in order, at most 16777216 from 0": _set(quant_max=1 << 25),
    "float32, float16 or bfloat16 elements": lambda case: case.changed(self=X.double()),
    "one dtype of inputs, states and weights": _set(input=LSTM[0].half()),
    "no dropout": _set(num_layers=2, dropout=0.5, train=True),
    "a known number of steps": dynamic,
    "(steps + 1) * layers * directions <= 117": _set(input=torch.rand(117, 1, 2)),
    "one floating-point dtype": integers,
    "a weight of known sizes, none of them 0": dynamic,
    "the dimensions that bilinear gives it": _set(sumdim=[2]),
    "integer matrices, the second of known sizes and of at most 65536 elements": dynamic,
}
"""How a call that is taken becomes one that a limit keeps whole."""

MASKS = ("attn_mask", "attn_bias")
RULES = standard_decompositions().rules
LIMITS = [
    pytest.param(target, limit.text, id=f"{target}-{number}") for target, rule in RULES.items() for number, limit in enumerate(rule.limits)
]


@pytest.mark.parametrize(("target", "limit"), LIMITS)
def test_a_call_that_a_limit_keeps_whole_is_refused_with_it(target: Any, limit: str) -> None:
    call = BROKEN[limit](TAKEN[target]).call(TAKEN[target])
    assert not RULES[target].takes(call)
    found = LoweredOracle(NO_CONVERTERS, standard_decompositions()).reject(call)
    assert found is not None
    assert (found.rule, found.message) == ("no-converter", f"no converter; its decomposition requires {limit}")


@pytest.mark.parametrize("target", [pytest.param(target, id=str(target)) for target in TAKEN])
def test_a_call_within_all_limits_is_taken(target: Any) -> None:
    call = TAKEN[target].call(TAKEN[target])
    assert RULES[target].takes(call)
    assert LoweredOracle(NO_CONVERTERS, standard_decompositions()).reject(call) == NO_CONVERTERS.reject(call)


def test_every_operator_with_limits_has_a_call() -> None:
    assert {target for target, rule in RULES.items() if rule.limits} == set(TAKEN)
    assert {limit.text for rule in RULES.values() for limit in rule.limits} == set(BROKEN)


def test_what_converters_take_is_asked_no_further() -> None:
    call = all_read(TAKEN[aten.median.dim]).call(TAKEN[aten.median.dim])
    table = standard_decompositions()
    assert LoweredOracle(Oracle(aten.median.dim), table).reject(call) is None
    assert LoweredOracle(NO_CONVERTERS, table.without(aten.median.dim)).reject(call) == NO_CONVERTERS.reject(call)
    assert LoweredOracle(Oracle(), Decompositions()).targets == Oracle().targets


def refusals(model: Any, args: tuple[Any, ...], oracle: Oracle, pipeline: Pipeline | None = None) -> dict[str, str]:
    """What is said of the calls of a lowered program that stay in PyTorch, by operator."""
    lowering = AtenLowering(pipeline=pipeline)
    graph = lowering.lower(whole(model, args), oracle).module.graph
    asked = lowering.oracle_of(oracle)
    found = [
        asked.reject(OpCall.from_node(node)) for node in graph.nodes if node.op == "call_function" and node.target is not operator.getitem
    ]
    return {item.target: item.message for item in found if item is not None}


def test_a_composite_call_names_what_it_is_made_of() -> None:
    found = refusals(lambda x: torch.argsort(x) + 1, (MANY,), Oracle())
    [message] = [text for target, text in found.items() if target.startswith("aten.argsort")]
    assert message == (
        "no converter; its decomposition calls aten.sort.default (no converter; its decomposition requires stable=True, "
        "or that nobody reads its indices, which PyTorch leaves open among equal elements)"
    )


def test_a_call_names_the_dtype_that_nobody_takes() -> None:
    assert refusals(torch.special.expit, (X.double(),), Oracle()) == {
        "aten.special_expit.default": "no converter; its decomposition calls aten.sigmoid.default (got torch.float64)"
    }


def test_a_decomposition_that_leads_back_to_the_call_tells_nothing() -> None:
    assert refusals(torch.lgamma, (X,), Oracle()) == {"aten.lgamma.default": "no converter"}


def test_a_reason_is_that_of_the_call_as_the_passes_leave_it() -> None:
    def as_double(gm: torch.fx.GraphModule) -> bool:
        [node] = gm.graph.find_nodes(op="call_function", target=aten.argsort.default)
        assert "stable=True" in node.meta[KEPT]
        with gm.graph.inserting_before(node):
            node.args = (gm.graph.call_function(aten._to_copy.default, (node.args[0],), {"dtype": torch.float64}), *node.args[1:])
        return True

    found = refusals(lambda x: torch.argsort(x) + 1, (MANY,), Oracle(), Pipeline((Pass("as_double", as_double),)))
    assert found["aten.argsort.default"].endswith("requires float32, float16, bfloat16, int32, int64 or bool elements)")


def test_of_calls_that_a_decomposition_is_not_for_nothing_is_said() -> None:
    call = integers(TAKEN[aten.amax.default].changed(self=X)).call(TAKEN[aten.amax.default])
    assert RULES[aten.amax.default].applies is not always
    assert LoweredOracle(NO_CONVERTERS, standard_decompositions()).reject(call) == NO_CONVERTERS.reject(call)
