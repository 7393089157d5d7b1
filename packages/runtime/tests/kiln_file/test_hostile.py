"""Files whose checksums hold, but which this package did not write. They are refused by ``PlanFormatError``, and run nothing."""

from __future__ import annotations

import copy
import json
import warnings
import zipfile

import pytest

from torchkiln_core import PlanFormatError
from torchkiln_runtime.kiln_file import load_program
from torchkiln_runtime.kiln_file.archive_writer import ArchiveWriter


@pytest.fixture
def members(saved) -> dict[str, bytes]:
    with zipfile.ZipFile(saved) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != "manifest.json"}


@pytest.fixture
def packed(tmp_path):
    """Packs members, with right checksums, and returns what loading says."""

    def pack(members: dict[str, bytes], change=None) -> PlanFormatError:
        with open(tmp_path / "packed.kiln", "w+b") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # zipfile's, of names that stand twice
            archive = ArchiveWriter(file)
            for name, content in members.items():
                with archive.member(name) as member:
                    member.write(content)
            if change is not None:
                change(archive)
            archive.finish()
        with pytest.raises(PlanFormatError) as caught:
            load_program(tmp_path / "packed.kiln")
        return caught.value

    return pack


def without(members, name):
    return {key: value for key, value in members.items() if key != name}


def test_missing_and_needless_members(members, packed):
    for name in members:
        assert name in packed(without(members, name)).message
    assert "extra" in packed(members | {"extra": b""}).message
    assert "plans/engine_0/2.plan" in packed(members | {"plans/engine_0/2.plan": b""}).message


def test_a_member_that_stands_twice(members, packed):
    def twice(archive):
        with archive.member("program.json") as member:
            member.write(b"{}")

    assert "twice" in packed(members, twice).message


def test_wrong_sizes_and_checksums_in_the_manifest(members, packed):
    for field, value in (("size", 3), ("size", 2**70), ("size", None), ("sha256", "0" * 64), ("sha256", 5)):

        def change(archive, field=field, value=value):
            archive._members["program.json"][field] = value

        assert field in packed(members, change).message or "checksum" in packed(members, change).message


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("where", ["whole", "program", "argument"])
def test_deeply_nested_json(members, packed, opening, where):
    deep = opening * 100_000
    if where == "program":
        deep = b'{"tensors":{},"program":' + deep
    if where == "argument":
        closing = {b"[": b"]", b'{"a":': b"}"}[opening]
        nested = opening * 900 + b"1" + closing * 900
        deep = members["program.json"].replace(b'{"node":"weight"}', nested)
        assert deep != members["program.json"]
    packed(members | {"program.json": deep})


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b"\xff", b"NaN", b'{"program":{},"program":{}}', b'{"program":1,"tensors":{}}', b"9" * 10_000]
)
def test_program_that_is_no_record(members, packed, text):
    packed(members | {"program.json": text})


def paths_in(data, path=()):
    """Places of all values in JSON data."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield from paths_in(item, (*path, key))


def changed(data, path, value):
    data = copy.deepcopy(data)
    target = data
    for key in path[:-1]:
        target = target[key]
    if value is DELETED:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return data


DELETED = object()


@pytest.mark.parametrize(
    "value", [None, -1, "x", [], {}, [{}], True, DELETED], ids="null number text list object objects true deleted".split()
)
def test_any_value_replaced_is_loaded_or_refused(members, tmp_path, value):
    """A record with another value may still be a program; what must not happen is another exception."""
    content = json.loads(members["program.json"])
    outcomes = {"loaded": 0, "refused": 0}
    for path in list(paths_in(content))[1:][len(str(value)) % 3 :: 3]:
        text = json.dumps(changed(content, path, value)).encode()
        with open(tmp_path / "a.kiln", "w+b") as file:
            archive = ArchiveWriter(file)
            for name, data in (members | {"program.json": text}).items():
                with archive.member(name) as member:
                    member.write(data)
            archive.finish()
        try:
            load_program(tmp_path / "a.kiln")
            outcomes["loaded"] += 1
        except PlanFormatError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > outcomes["loaded"]


INJECTIONS = [
    (("name",), "x=print(1)"),
    (("name",), "lambda"),
    (("name",), "x"),
    (("target",), "x=__import__('os').abort()"),
    (("target",), "*args"),
]


@pytest.mark.parametrize(("path", "value"), INJECTIONS)
def test_names_that_would_become_code(members, packed, path, value):
    content = json.loads(members["program.json"])
    node = ("program", "segments", 1, "graph", "nodes", 1)
    packed(members | {"program.json": json.dumps(changed(content, node + path, value)).encode()})


@pytest.mark.parametrize(
    "change",
    [
        {"target": "builtins.eval"},
        {"target": "operator.attrgetter"},
        {"target": "aten.from_file.default"},
        {"target": "aten.save.default"},
        {"target": "prim.Print.default"},
        {"target": "higher_order.cond.default"},
        {"target": "aten.add.Nothing"},
        {"target": "aten.add"},
        {"target": "aten.__class__.__init__"},
        {"target": "load_library.x.default"},
        {"target": "nobody.knows.default"},
        {"op": "call_method", "target": "numpy"},
        {"op": "call_module", "target": "tables.scale"},
        {"op": "get_attr", "target": "tables"},
        {"op": "output"},
        {"op": "root"},
        {"kwargs": {"alpha=__import__('os').abort(), b": 1}},
        {"args": [{"node": "mul"}]},
        {"args": [{"node": "add_tensor"}]},
        {"args": [{"float": "1z"}]},
        {"args": [{"int": "1__0"}]},
        {"args": [{"device": "nowhere:99"}]},
        {"args": [{"dtype": "float9"}]},
        {"args": [{"pickle": "x"}]},
        {"args": [{"slice": [1]}]},
        {"args": [{"dict": [[1]]}]},
        {"args": [{"complex": ["0x1p+0"]}]},
        {"args": {"node": "x"}},
        {"trace": 5},
        {"module": 5},
    ],
    ids=lambda change: "-".join(map(str, *change.items()))[:40] if isinstance(change, dict) and len(change) == 1 else None,
)
def test_nodes_that_nothing_here_writes(members, packed, change):
    content = json.loads(members["program.json"])
    nodes = content["program"]["segments"][1]["graph"]["nodes"]
    node = next(node for node in nodes if node["target"] == "aten.add.Tensor")
    node |= change
    packed(members | {"program.json": json.dumps(content).encode()})


@pytest.mark.parametrize(
    "change",
    [
        {"offset": -4},
        {"offset": 3},
        {"offset": 4},
        {"shape": [5]},
        {"shape": [2**62], "stride": [2**62]},
        {"shape": [-1]},
        {"stride": [2]},
        {"stride": [-1]},
        {"stride": []},
        {"stride": [True]},
        {"dtype": "float64"},
        {"dtype": "qint8"},
        {"block": "nothing"},
    ],
    ids=str,
)
def test_views_that_reach_beyond_their_memory(members, packed, change):
    content = json.loads(members["program.json"])
    content["tensors"]["weights:layer.weight"] |= change
    message = packed(members | {"program.json": json.dumps(content).encode()}).message
    assert any(word in message for word in ("layer.weight", "qint8", "got bool"))


def header(entries) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (100).to_bytes(8, "little") + b"{}",
        header([]),
        header({"a": 1}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}) + b"\0" * 8,
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}) + b"\0" * 5,
        header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}) + b"\0" * 4,
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}) + b"\0" * 4,
        header({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}) + b"\0" * 4,
        header({"a": {"dtype": "U8", "shape": [2**80], "data_offsets": [0, 2**80]}}) + b"\0" * 4,
        header({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}) + b"\0",
    ],
    ids=range(13),
)
def test_safetensors_that_contradict_themselves(members, packed, data):
    packed(members | {"tensors.safetensors": data})


@pytest.mark.parametrize(
    "size", ["9**9**9**9", "s0**(9**9)", "(2**99)**99**2", "1//0", "s0.real", "__import__('os')", "-" * 100_000 + "1", 1.5, None]
)
def test_sizes_that_nothing_here_writes(members, packed, size):
    content = json.loads(members["program.json"])
    content["program"]["segments"][0]["plans"][0]["inputs"][0]["shape"][0] = size
    packed(members | {"program.json": json.dumps(content).encode()})
