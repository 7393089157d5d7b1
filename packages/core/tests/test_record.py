"""Records as JSON, plan keys, and records that are not ours."""

from __future__ import annotations

import copy
import json
import re

import pytest
import torch
from core_programs import Symbols
from hypothesis import given, settings
from hypothesis import strategies as st

from torchkiln_core import DimRange, Network, PlanFormatError, from_record, network_key, to_record
from torchkiln_core.layers import Activation, ActivationKind, Elementwise, ElementwiseOp, Shuffle, Slice


def _network(
    names=("x", "y", "out"),
    where="m.py:1",
    weight="w",
    constant=None,
    op=ElementwiseOp.SUM,
    alpha=0.5,
    dims=(2, 8, 64),
    hints=(5, 4),
):
    """Two dynamic inputs, a constant, a size operand."""
    symbols = Symbols(dict(zip(names[:2], hints, strict=True)))
    net = symbols.network()
    net.dims = {name: DimRange(name, *dims) for name in net.dims}
    first, second = names[:2]
    x = net.input(first, torch.float32, (symbols.ints[first], symbols.ints[second]))
    y = net.input(second, torch.float32, (1, symbols.ints[second]))
    with net.scope(names[2], where):
        total = net.add(Elementwise(op), x, y)
        total = net.add(Elementwise(ElementwiseOp.PROD), total, net.constant(torch.ones(1, 1) if constant is None else constant, weight))
        total = net.add(Activation(ActivationKind.LEAKY_RELU, alpha), total)
        total = net.add(Slice((1, 0), None, (1, 1)), total, None, net.size_tensor((symbols.size(f"{first} - 1"), symbols.size(second))))
        flat = net.add(Shuffle(), total, net.size_tensor((symbols.size(f"({first} - 1)*{second}"),)))
    net.output(names[2], flat)
    return net


BASE = network_key(_network(), {"tf32": False})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"names": ("a", "b", "c")},
        {"names": ("zz", "a", "Z")},
        {"where": "other.py:77"},
        {"where": None},
        {"weight": "model.layer.weight"},
        {"hints": (9, 6)},
        {"constant": torch.ones(2, 2)[:1, :1]},
    ],
    ids=str,
)
def test_what_does_not_enter_the_key(change):
    assert network_key(_network(**change), {"tf32": False}) == BASE


@pytest.mark.parametrize(
    "change",
    [
        {"op": ElementwiseOp.MAX},
        {"alpha": 0.25},
        {"alpha": float("nan")},
        {"constant": torch.zeros(1, 1)},
        {"constant": torch.full((1, 1), 1 + 2**-23)},
        {"dims": (2, 8, 65)},
        {"dims": (2, 9, 64)},
        {"dims": (3, 8, 64)},
    ],
    ids=str,
)
def test_what_enters_the_key(change):
    assert network_key(_network(**change), {"tf32": False}) != BASE


def test_options_enter_the_key():
    keys = {network_key(_network(), options) for options in ({"tf32": True}, {"tf32": False}, {"tf32": False, "level": 3}, {})}
    assert len(keys) == 4
    assert network_key(_network(), {"a": 1, "b": 2}) == network_key(_network(), {"b": 2, "a": 1})


def test_roles_of_symbols_and_operands_enter_the_key():
    def key(shape, order=(0, 1)):
        symbols = Symbols({"n": 5, "m": 4})
        net = symbols.network()
        inputs = [net.input("x", torch.float32, [net.symbolic_int(symbols.size(size)) for size in shape]) for _ in range(2)]
        net.output("y", net.add(Elementwise(ElementwiseOp.SUB), *(inputs[index] for index in order)))
        return network_key(net, {})

    assert key(("n", "m")) == key(("m", "n"))
    assert len({key(("n", "m")), key(("n", "n")), key(("n", 2)), key(("n", "2*n")), key(("n", "m"), (1, 0))}) == 5


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def _constant_key(tensor):
    net = Network()
    net.output("y", net.constant(tensor))
    return network_key(net, {})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_key_reads_the_elements_of_a_constant(dtype):
    base = torch.tensor([[0, 1, 1], [1, 0, 0]])
    tensor = base.to(dtype)
    other = base.clone()
    other[1, 2] = 1
    assert _constant_key(tensor) == _constant_key(tensor.clone())
    assert _constant_key(tensor) == _constant_key(base.t().contiguous().to(dtype).t())
    assert _constant_key(tensor) == _constant_key(torch.nn.Parameter(tensor, requires_grad=dtype.is_floating_point))
    assert _constant_key(tensor) != _constant_key(other.to(dtype))
    assert _constant_key(tensor) != _constant_key(base.reshape(3, 2).to(dtype))
    assert _constant_key(tensor[0, 1]) != _constant_key(tensor[0, 0])


def test_constants_of_equal_bytes_differ_by_dtype_and_views_by_their_values():
    keys = {_constant_key(torch.zeros(4, dtype=dtype)) for dtype in DTYPES}
    assert len(keys) == len(DTYPES)
    assert _constant_key(torch.zeros(0)) != _constant_key(torch.zeros(0, 2))
    pair = torch.tensor([1 + 2j, 3 - 4j])
    assert _constant_key(pair.conj()) == _constant_key(pair.conj().resolve_conj())
    assert _constant_key(pair.conj()) != _constant_key(pair)
    assert _constant_key(pair.conj().imag) == _constant_key(torch.tensor([-2.0, 4.0]))


def test_weights_are_hashed_in_place(monkeypatch):
    copies = []
    monkeypatch.setattr(torch.Tensor, "clone", lambda *args, **kwargs: copies.append(args))
    monkeypatch.setattr(torch.Tensor, "numpy", lambda *args, **kwargs: copies.append(args))
    net = Network()
    net.output("y", net.constant(torch.ones(1000)))
    network_key(net, {})
    assert copies == []


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["n", "m", "2*n", "n + m", "n*m", "max(n, m + 1)", "(n + 3)//2", "4"]), min_size=1, max_size=4), st.booleans()
)
def test_keys_do_not_see_names(shape, swapped):
    def key(labels, new):
        symbols = Symbols(labels)
        net = symbols.network()
        texts = [re.sub(r"\b[nm]\b", lambda match: new[match.group()], text) for text in [*shape, "n", "m"]]
        x = net.input(new["n"], torch.float32, [net.symbolic_int(symbols.size(text)) for text in texts])
        net.output("y", x)
        return network_key(net, {})

    hints = {"p": 5, "q": 4} if swapped else {"q": 4, "p": 5}
    assert key({"n": 5, "m": 4}, {"n": "n", "m": "m"}) == key(hints, {"n": "p", "m": "q"})


@pytest.fixture(scope="module")
def record():
    return to_record(_network())


def _altered(record, path, value):
    data = json.loads(json.dumps(record[0]))
    *parents, last = path
    place = data
    for part in parents:
        place = place[part]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return data


ACTIVATION = ("steps", 3)


def test_the_altered_step_is_the_activation(record):
    assert record[0]["steps"][3]["layer"] == "Activation"
    assert record[0]["steps"][1]["layer"] == "Constant"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("dims",), KeyError),
        (("dims",), []),
        (("dims", "s9"), [1, 2]),
        (("dims", "s9"), [1, 2, "3"]),
        (("dims", "s9"), [1.0, 2.0, 3.0]),
        (("dims", "s9"), [3, 2, 1]),
        (("inputs",), None),
        (("inputs", 0, "name"), 5),
        (("inputs", 0, "dtype"), "float7"),
        (("inputs", 0, "shape"), ["__import__('os')"]),
        (("inputs", 0, "shape"), [1.5]),
        (("inputs", 0, "shape"), ["9**9**9"]),
        (("inputs", 0, "sizes"), ["s0.real"]),
        (("inputs", 1, "name"), "x"),
        (("steps",), 3),
        (("outputs",), [["y"]]),
        (("outputs",), [["y", "nobody"]]),
        ((*ACTIVATION, "layer"), "Exec"),
        ((*ACTIVATION, "layer"), "Layer"),
        ((*ACTIVATION, "layer"), ["Activation"]),
        ((*ACTIVATION, "layer"), "ActivationKind"),
        ((*ACTIVATION, "inputs"), ["nobody"]),
        ((*ACTIVATION, "outputs", 0, "name"), "x"),
        ((*ACTIVATION, "where"), 3),
        ((*ACTIVATION, "weight"), ["w"]),
        ((*ACTIVATION, "name"), None),
        ((*ACTIVATION, "attributes"), KeyError),
        ((*ACTIVATION, "attributes", "op"), KeyError),
        ((*ACTIVATION, "attributes", "op"), "RELUX"),
        ((*ACTIVATION, "attributes", "gamma"), 1),
        ((*ACTIVATION, "attributes", "run"), 1),
        ((*ACTIVATION, "attributes", "alpha"), "0.5"),
        ((*ACTIVATION, "attributes", "alpha"), True),
        ((*ACTIVATION, "attributes", "alpha"), {"float": "zz"}),
        ((*ACTIVATION, "attributes", "alpha"), {"float": "0x1p99999"}),
        ((*ACTIVATION, "attributes", "alpha"), {"float": 1}),
        ((*ACTIVATION, "attributes", "alpha"), {}),
        (("steps", 1, "attributes", "tensor"), "constant_9"),
        (("steps", 1, "outputs", 0, "shape"), [1, 2]),
        (("steps", 1, "outputs", 0, "dtype"), "float16"),
        (("steps", 1, "outputs"), []),
    ],
    ids=str,
)
def test_a_malformed_record_is_refused(record, path, value):
    data = _altered(record, path, value)
    with pytest.raises(PlanFormatError):
        from_record(data, record[1])


@pytest.mark.parametrize(
    ("name", "value"),
    [("start", [1, "0"]), ("start", [1.5, 0]), ("start", 3), ("start", [True, 0]), ("mode", 5), ("stride", {"float": "0x1p0"})],
)
def test_attributes_have_their_types(record, name, value):
    index = [step["layer"] for step in record[0]["steps"]].index("Slice", 4)
    while record[0]["steps"][index]["inputs"][1:] == []:
        index += 1
    data = _altered(record, ("steps", index, "attributes", name), value)
    with pytest.raises(PlanFormatError, match="network record: "):
        from_record(data, record[1])


@pytest.mark.parametrize("data", [None, [], "x", 3, {}])
def test_anything_but_a_record_is_refused(data):
    with pytest.raises(PlanFormatError, match="network record"):
        from_record(data, {})


def test_a_record_is_plain_json_and_is_not_changed_by_reading(record):
    data = json.loads(json.dumps(record[0]))
    before = copy.deepcopy(data)
    again = from_record(data, record[1])
    assert data == before == to_record(again)[0]
    assert [value.sizes is None for step in again.steps for value in step.outputs] == [
        value.sizes is None for step in _network().steps for value in step.outputs
    ]
