"""Conditionals and loops: what they compute, what they infer, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from core_bodies import F32, I64, NEG, branch, branches, cumulative, ew, finish, looped, nested, scalar, scanned, total
from core_programs import Symbols, shape_at

from torchkiln_core import InternalError, Interpreter, Network
from torchkiln_core.layers import (
    Cast,
    Collected,
    IfConditional,
    Iterated,
    Loop,
    LoopOutput,
    Shuffle,
    operand_input,
    recurrence_input,
    slice_input,
)
from torchkiln_testing import assert_same

TRUE, FALSE = torch.tensor(True), torch.tensor(False)


def test_a_conditional_runs_one_branch():
    net = Network()
    p, x, y = net.input("p", torch.bool, ()), net.input("x", F32, (2,)), net.input("y", F32, (2,))
    results = branch(
        net,
        p,
        (x, y),
        lambda body, x, y: (ew(body, "SUM", x, y), x),
        lambda body, x, y: (body.constant(torch.ones(2)), body.add(NEG, y)),
    )
    for index, value in enumerate(results):
        net.output(f"out_{index}", value)
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert_same((a + b, a), Interpreter(net)(TRUE, a, b))
    assert_same((torch.ones(2), -b), Interpreter(net)(FALSE, a, b))


def test_branches_without_inputs_run():
    net = Network()
    p = net.input("p", torch.bool, ())
    (y,) = branch(net, p, (), lambda body: body.constant(torch.ones(2)), lambda body: body.constant(torch.zeros(2)))
    net.output("y", y)
    assert_same((torch.zeros(2),), Interpreter(net)(FALSE))


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_several_recurrences_move_together(trips):
    net = Network()
    values = [net.input(name, I64, ()) for name in "abc"]
    layer = looped(net, values, (), lambda body, a, b, c: (b, c, ew(body, "SUM", a, b)))
    for index, value in enumerate(net.add_many(layer, None, net.size_tensor((trips,)), *values)):
        net.output(f"out_{index}", value)
    a, b, c = 1, 10, 100
    got = Interpreter(net)(*map(torch.tensor, (a, b, c)))
    for _ in range(trips):
        a, b, c = b, c, a + b
    assert [int(value) for value in got] == [a, b, c]


@pytest.mark.parametrize("dtype", [torch.int32, I64])
@pytest.mark.parametrize("count", [-3, 0, 1, 4])
def test_a_count_may_depend_on_data(dtype, count):
    net = Network()
    n, x = net.input("n", dtype, ()), net.input("x", F32, (2,))
    (y,) = net.add_many(looped(net, (x,), (x,), lambda body, state, x: ew(body, "SUM", state, x)), n, None, x, x)
    net.output("y", y)
    assert_same(
        (torch.tensor([1.0, 2.0]) * (max(count, 0) + 1),), Interpreter(net)(torch.tensor(count, dtype=dtype), torch.tensor([1.0, 2.0]))
    )


@pytest.mark.parametrize(("limit", "bound", "trips"), [(None, 0, 0), (None, 4, 4), (3, 4, 3), (3, 2, 2), (0, 4, 0)])
def test_a_condition_is_asked_before_each_trip(limit, bound, trips):
    net = Network()
    start, end, x = net.input("start", I64, ()), net.input("end", I64, ()), net.input("x", F32, (2,))
    layer = looped(
        net,
        (start, x),
        (end,),
        lambda body, i, x, end: (ew(body, "SUM", i, scalar(body, 1)), ew(body, "SUM", x, x)),
        lambda body, i, x, end: ew(body, "LESS", i, end),
    )
    for value in net.add_many(layer, None, None if limit is None else net.size_tensor((limit,)), start, x, end):
        net.output("y", value)
    index, y = Interpreter(net)(torch.tensor(0), torch.tensor(bound), torch.tensor([1.0, -2.0]))
    assert int(index) == trips
    assert_same((torch.tensor([1.0, -2.0]) * 2**trips,), (y,))


def test_a_scan_over_symbolic_sizes():
    symbols = Symbols({"n": 5, "m": 4})
    net = symbols.network()
    x = net.input("x", F32, (symbols.ints["n"], symbols.ints["m"]))
    initial = net.input("initial", F32, (symbols.ints["m"],))
    before = symbols.state()
    results = cumulative(net, x, initial)
    for value in results:
        net.output("y", value)
    assert symbols.state() == before
    for n, m in ((3, 2), (1, 7), (0, 4)):
        given, start = torch.arange(float(n * m)).reshape(n, m), torch.ones(m)
        expected = (given.sum(0) + 1, given.cumsum(0) + 1, given.flip(0).t())
        assert_same(expected, Interpreter(net)(given, start))
        sizes = symbols.values({"n": n, "m": m})
        assert [shape_at(value.shape, sizes) for value in results] == [tuple(tensor.shape) for tensor in expected]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_iterators_and_collected_values_have_axes_and_directions(axis, reverse):
    net = Network()
    x = net.input("x", F32, (3, 3))
    outs = [Collected(kind, at) for kind in LoopOutput for at in (0, 1)]
    for value in scanned(net, (), (x,), (Iterated(axis, reverse),), outs, lambda body, row: (row,) * 4):
        net.output("y", value)
    given = torch.arange(9.0).reshape(3, 3)
    seen = list(given.unbind(axis))[:: -1 if reverse else 1]
    expected = [torch.stack(seen[:: -1 if how.order is LoopOutput.REVERSE else 1], how.axis) for how in outs]
    assert_same(tuple(expected), Interpreter(net)(given))


def test_no_trip_gives_the_shapes_that_a_trip_would():
    symbols = Symbols({"n": 5, "m": 4, "k": 3})
    net = symbols.network()
    n, m, k = (symbols.ints[label] for label in "nmk")
    x, y, z = net.input("x", F32, (n, m, 2)), net.input("y", torch.int8, (2 * k + 1,)), net.input("z", torch.int8, (n, k))
    sizes = (symbols.size("2*m"), 1)

    def body(body, row, y, size):
        return body.add(Shuffle(), row, size), y, body.add(Shuffle(), row, body.size_tensor((1, symbols.size("2*m"))))

    outs = (Collected(LoopOutput.CONCATENATE, 1), Collected(LoopOutput.REVERSE, 0), Collected())
    for value in scanned(net, (), (x,), (Iterated(0),), outs, body, (y, net.size_tensor(sizes))):
        net.output("y", value)
    for count in (0, 2):
        got = Interpreter(net)(torch.ones(count, 4, 2), torch.ones(7, dtype=torch.int8), torch.ones(count, 3, dtype=torch.int8))
        assert [(tensor.dtype, tuple(tensor.shape)) for tensor in got] == [
            (F32, (8, count, 1)),
            (torch.int8, (count, 7)),
            (F32, (count, 1, 8)),
        ]
    assert z.rank == 2


def test_a_conditional_inside_a_loop():
    net = nested(torch.full((1, 1), 2.0))
    x = torch.full((2, 3), 0.5)
    expected = x
    for _ in range(4):
        expected = expected + x * 2.0 if expected.sum() < 10 else -expected
    assert_same((expected,), Interpreter(net)(x))


def test_loops_in_conditionals_and_loops():
    net = Network()
    x = net.input("x", F32, (2,))

    def doubled(body, x):
        return body.add_many(looped(body, (x,), (), lambda inner, x: ew(inner, "SUM", x, x)), None, body.size_tensor((3,)), x)

    def squared(body, x):
        return branch(body, ew(body, "LESS", total(body, x), scalar(body, 100.0, F32)), (x,), doubled, lambda inner, x: inner.add(NEG, x))

    (y,) = net.add_many(looped(net, (x,), (), squared), None, net.size_tensor((3,)), x)
    net.output("y", y)
    assert_same((torch.tensor([-64.0, -128.0]),), Interpreter(net)(torch.tensor([1.0, 2.0])))


def test_constants_of_bodies_are_copied_once():
    net = nested(torch.ones(1, 1, dtype=F32))
    run = Interpreter(net)
    (loop,) = run._bodies.values()
    (then, otherwise) = loop._bodies.values()
    for _ in range(2):
        run(torch.ones(2, 3))
    assert [len(part._constants) for part in (then, otherwise)] == [1, 1]


def test_names_are_unique_over_bodies_and_steps_are_found():
    net = nested(torch.ones(1, 1))
    steps = list(net.all_steps())
    names = [value.name for step in steps for value in step.outputs]
    assert len(set(names)) == len(names)
    assert [step.layer.kind() for step in steps] == [
        *("Constant", "Loop", "Reduce", "Constant", "Elementwise", "IfConditional"),
        *("Constant", "Elementwise", "Elementwise", "Unary"),
    ]
    assert {step.where for step in steps} == {"x.py:7"}
    assert steps[-1].name == "x_loop/body/otherwise/Unary"
    assert steps[6].weight == "w"


def test_bodies_are_printed():
    assert str(nested(torch.ones(1, 1))).splitlines()[:9] == [
        "input %x: float32[2, 3]",
        "%x_loop/Constant: int64[1] = Constant(int64[1])()",
        "%x_loop/Loop: float32[2, 3] = Loop(iterated=(), collected=())(-, %x_loop/Constant, %x, %x)",
        "  body:",
        "    input %s: float32[2, 3]",
        "    input %x_1: float32[2, 3]",
        "    %x_loop/body/Reduce: float32[] = Reduce(op=<ReduceOp.SUM: 'SUM'>, axes=(0, 1), keep_dims=False)(%s)",
        "    %x_loop/body/Constant: float32[] = Constant(float32[])()",
        "    %x_loop/body/Elementwise: bool[] = Elementwise(op=<ElementwiseOp.LESS: 'LESS'>)(%x_loop/body/Reduce, %x_loop/body/Constant)",
    ]


@pytest.fixture
def net():
    return Network()


def _x(net, *shape, dtype=F32):
    return net.input("x", dtype, shape)


def _same(body, x):
    return x


@pytest.mark.parametrize(
    ("otherwise", "message"),
    [
        (lambda body, x: body.add(Cast(torch.float16), x), r"expected float32\[2, 3\], got .*float16"),
        (total, r"expected float32\[2, 3\], got .*float32\[\]"),
        (lambda body, x: body.add(Shuffle((1, 0)), x), r"expected float32\[2, 3\], got .*float32\[3, 2\]"),
        (lambda body, x: (x, x), "got 1 and 2"),
        (lambda body, x: (), "got 1 and 0"),
    ],
)
def test_branches_agree(net, otherwise, message):
    with pytest.raises(InternalError, match=message):
        branches(net, (_x(net, 2, 3),), _same, otherwise)


def test_branches_have_outputs(net):
    with pytest.raises(InternalError, match="at least one"):
        branches(net, (_x(net, 2),), lambda body, x: (), lambda body, x: ())


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        (("flag", "x"), None),
        (("flags", "x"), r"condition: expected bool\[\], got %p_1: bool\[1\]"),
        (("x", "x"), r"condition: expected bool\[\]"),
        (("flag",), "expected 1 operands for its inputs, got 0"),
        (("flag", "x", "x"), "expected 1 operands for its inputs, got 2"),
        (("flag", "half"), r"expected float32\[2\], got .*float16"),
        (("flag", "long"), r"expected float32\[2\], got .*float32\[3\]"),
        (("flag", None), "expected every operand"),
        ((), "expected every operand"),
    ],
)
def test_operands_fit_the_branches(net, operands, message):
    values = {
        "flag": net.input("p", torch.bool, ()),
        "flags": net.input("p", torch.bool, (1,)),
        "x": net.input("x", F32, (2,)),
        "half": net.input("half", torch.float16, (2,)),
        "long": net.input("long", F32, (3,)),
        None: None,
    }
    layer = branches(net, (values["x"],), _same, _same)
    picked = [values[name] for name in operands]
    if message is None:
        assert net.add(layer, *picked).shape == (2,)
    else:
        with net.scope("cond", "m.py:3"), pytest.raises(InternalError, match=message) as caught:
            net.add(layer, *picked)
        assert (caught.value.layer, caught.value.where) == ("cond/IfConditional", "m.py:3")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda body, x: body.add(Cast(torch.float16), x), r"recurrence: expected float32\[2, 3\], got .*float16"),
        (lambda body, x: body.add(Shuffle((1, 0)), x), r"recurrence: expected float32\[2, 3\], got .*float32\[3, 2\]"),
        (total, r"recurrence: expected float32\[2, 3\], got .*float32\[\]"),
        (lambda body, x: (x, x), "got 1 inputs and 2 outputs"),
        (lambda body, x: (), "expected a body with a recurrence or a slice"),
    ],
)
def test_a_recurrence_keeps_its_dtype_and_shape(net, write, message):
    with pytest.raises(InternalError, match=message):
        looped(net, (_x(net, 2, 3),), (), write)


@pytest.mark.parametrize(
    ("until", "message"),
    [
        (lambda body, x, y: ew(body, "LESS", x, y), r"condition: expected bool\[\], got .*bool\[2\]"),
        (lambda body, x, y: total(body, x), r"condition: expected bool\[\], got .*float32\[\]"),
        (lambda body, x, y: (), "one output, got 0"),
        (lambda body, x, y: body.constant(TRUE), "reads a recurrence"),
        (lambda body, x, y: ew(body, "LESS", total(body, y), scalar(body, 1.0, F32)), "reads a recurrence"),
    ],
)
def test_a_condition_is_one_bool_that_can_change(net, until, message):
    x = _x(net, 2)
    with pytest.raises(InternalError, match=message):
        looped(net, (x,), (x,), lambda body, x, y: ew(body, "SUM", x, y), until)


def test_a_condition_has_no_bodies(net):
    x = _x(net, 2)

    def until(body, x):
        flag = ew(body, "LESS", total(body, x), scalar(body, 1.0, F32))
        return branch(body, flag, (flag,), _same, _same)

    with pytest.raises(InternalError, match="without loops and conditionals"):
        looped(net, (x,), (), lambda body, x: x, until)


def test_nothing_is_collected_under_a_condition(net):
    x = _x(net, 2)
    layer = looped(net, (x,), (), lambda body, x: (x,), lambda body, x: ew(body, "LESS", total(body, x), scalar(body, 1.0, F32)))
    layer.body.output("again", layer.body.inputs[0])
    with pytest.raises(InternalError, match="no collected values where a condition ends the loop"):
        Loop(layer.body, layer.condition, (), (Collected(),))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((None, None, "x"), "a count or a condition, got neither"),
        (("float", None, "x"), "int32 or int64"),
        (("vector", None, "x"), "int32 or int64"),
        (("count", "size", "x"), "one count"),
        ((None, "sizes", "x"), "a count of one size"),
        ((None, "count", "x"), "must hold sizes"),
        ((None, "size"), "expected every operand"),
        ((None, "size", None), "expected every operand"),
        ((None,), "expected every operand"),
        ((None, "size", "count"), r"expected float32\[2\]"),
    ],
)
def test_operands_fit_the_loop(net, operands, message):
    values = {
        "x": net.input("x", F32, (2,)),
        "count": net.input("count", I64, ()),
        "float": net.input("float", F32, ()),
        "vector": net.input("vector", I64, (1,)),
        "size": net.size_tensor((3,)),
        "sizes": net.size_tensor((3, 4)),
        None: None,
    }
    layer = looped(net, (values["x"],), (), _same)
    with pytest.raises(InternalError, match=message):
        net.add_many(layer, *(values[name] for name in operands))


@pytest.mark.parametrize(
    ("iterated", "collected", "size", "message"),
    [
        (Iterated(0), Collected(), None, "count as a size"),
        (Iterated(0), Collected(), 2, "as many trips as"),
        (Iterated(0), Collected(), 4, "as many trips as"),
        (Iterated(2), Collected(), 3, r"axis in \[0, 2\) of an iterated tensor, got 2"),
        (Iterated(-1), Collected(), 3, r"axis in \[0, 2\) of an iterated tensor, got -1"),
        (Iterated(0), Collected(axis=2), 3, r"axis in \[0, 1\] to collect along, got 2"),
        (Iterated(0), Collected(axis=-1), 3, r"axis in \[0, 1\] to collect along, got -1"),
    ],
)
def test_iterators_and_collected_values_fit(net, iterated, collected, size, message):
    x = _x(net, 3, 3)
    body = net.body("body")
    finish(body, slice_input(body, "row", x, 0))
    length = None if size is None else net.size_tensor((size,))
    with pytest.raises(InternalError, match=message):
        net.add_many(Loop(body, None, (iterated,), (collected,)), None, length, x)


def test_an_undecided_number_of_trips_is_refused():
    symbols = Symbols({"n": 5, "m": 4})
    net = symbols.network()
    x = net.input("x", F32, (symbols.ints["n"], symbols.ints["m"]))
    body = net.body("body")
    finish(body, slice_input(body, "row", x, 0))
    before = symbols.state()
    with pytest.raises(InternalError, match="as many trips as"):
        net.add_many(Loop(body, None, (Iterated(),), (Collected(),)), None, net.size_tensor((symbols.size("m"),)), x)
    assert symbols.state() == before


def test_fixed_sizes_are_no_recurrence(net):
    sizes = net.size_tensor((2, 3))
    body = net.body("body")
    finish(body, operand_input(body, "s", sizes))
    with pytest.raises(InternalError, match="holds fixed sizes"):
        Loop(body)
    other = net.body("body")
    finish(other, recurrence_input(other, "s", sizes))
    assert net.add(Loop(other), None, net.size_tensor((1,)), sizes).sizes is None


def test_other_sizes_than_the_body_was_written_for_are_refused(net):
    p, x = net.input("p", torch.bool, ()), _x(net, 2, 3)
    write = lambda body, x, size: body.add(Shuffle(), x, size)  # noqa: E731
    layer = branches(net, (x, net.size_tensor((3, 2))), write, write)
    with pytest.raises(InternalError, match=r"holds \(6, 1\), expected the sizes \(3, 2\)"):
        net.add(layer, p, x, net.size_tensor((6, 1)))


def test_a_body_belongs_to_its_network(net):
    x, p = _x(net, 2), net.input("p", torch.bool, ())
    other = Network()
    layer = branches(other, (_x(other, 2),), _same, _same)
    with pytest.raises(InternalError, match=r"Network\.body"):
        net.add(layer, p, x)


def test_a_body_sees_nothing_but_its_inputs(net):
    x = _x(net, 2)
    with net.scope("loop", "m.py:3"), pytest.raises(InternalError, match=r"%x is of another network") as caught:
        looped(net, (x,), (), lambda body, state: ew(body, "SUM", state, x))
    assert (caught.value.layer, caught.value.where) == ("loop/body/Elementwise", "m.py:3")
    with pytest.raises(InternalError, match=r"%x is of another network"):
        looped(net, (x,), (), lambda body, state: x)


def test_kinds_of_bodies_are_told_apart():
    net = nested(torch.ones(1, 1))
    loop, conditional = (step.layer for step in net.all_steps() if step.layer.bodies())
    assert isinstance(loop, Loop)
    assert isinstance(conditional, IfConditional)
    assert list(loop.bodies()) == ["body"]
    assert list(conditional.bodies()) == ["then", "otherwise"]
