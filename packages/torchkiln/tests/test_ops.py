"""The table of operators is read off the registries, names every core operator, and says why one is refused."""

from __future__ import annotations

import json

import pytest
import torch

from torchkiln import ops
from torchkiln.cli import main
from torchkiln_converters import ConverterRegistry, Support, converter
from torchkiln_converters.refusals import REFUSED
from torchkiln_core import Network, Value
from torchkiln_core.layers import Unary, UnaryOp
from torchkiln_lowering import standard_decompositions


@pytest.fixture(scope="module")
def by_name() -> dict[str, ops.Operator]:
    return {item.name: item for item in ops.table()}


def test_every_core_operator_is_converted_decomposed_or_refused_with_a_reason(by_name: dict[str, ops.Operator]) -> None:
    core = {str(target) for target in ops.core_operators()}
    assert len(core) > 180
    assert core <= set(by_name)
    assert {name for name in core if by_name[name].notes == ("no converter and no decomposition",)} == set()


def test_refusals_name_operators_that_exist_and_nobody_converts(by_name: dict[str, ops.Operator]) -> None:
    core = {str(target) for target in ops.core_operators()}
    for name in REFUSED:
        namespace, operator, overload = name.split(".")
        assert isinstance(getattr(getattr(getattr(torch.ops, namespace), operator), overload), torch._ops.OpOverload)
        assert name not in core or by_name[name].status == "refused"


def test_a_converter_tells_its_dtypes_ranks_and_rules(by_name: dict[str, ops.Operator]) -> None:
    relu, elu, convolution = (by_name[f"aten.{name}.default"] for name in ("relu", "elu", "convolution"))
    assert relu.status == "converted"
    assert "bfloat16" in relu.dtypes
    assert relu.ranks == (0, 8)
    assert relu.dynamic == "yes"
    assert elu.notes == ("input_scale must be 1",)
    assert convolution.ranks == (3, 5)
    assert any("deterministic" in note for note in by_name["aten.scatter.src"].notes)
    logsumexp = ops.Operator("aten.logsumexp.default", "decomposed", notes=("by torchkiln", "requires floating-point elements"))
    assert by_name["aten.logsumexp.default"] == logsumexp


def test_a_decomposition_tells_its_limits(by_name: dict[str, ops.Operator]) -> None:
    for target, rule in standard_decompositions().rules.items():
        notes, limits = by_name[str(target)].notes, tuple(f"requires {limit.text}" for limit in rule.limits)
        assert notes[len(notes) - len(limits) :] == limits
        assert notes[-len(limits) - 1].endswith("by torchkiln")


def test_a_registry_of_ones_own_changes_the_table() -> None:
    @converter(torch.ops.aten.neg.default, Support(dtypes=frozenset({torch.float16}), ranks=range(2, 4)))
    def neg(net: Network, self: Value) -> Value:
        return net.add(Unary(UnaryOp.NEG), self)

    found = {item.name: item for item in ops.table(ConverterRegistry([neg]))}
    assert found["aten.neg.default"] == ops.Operator("aten.neg.default", "converted", ("float16",), (2, 3), "yes")
    assert found["aten.convolution.default"].status == "refused"


def test_the_command_prints_text_and_json(capsys: pytest.CaptureFixture[str], by_name: dict[str, ops.Operator]) -> None:
    assert main(["ops"]) == 0
    text = capsys.readouterr().out
    assert "aten.relu.default " in text
    assert len(text.splitlines()) == len(by_name)
    assert main(["ops", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["status"] for row in rows} == {name: item.status for name, item in by_name.items()}


def test_markdown_has_a_line_for_each(by_name: dict[str, ops.Operator]) -> None:
    lines = ops.to_markdown(tuple(by_name.values())).splitlines()
    assert len(lines) == len(by_name) + 2
    assert all(line.count("|") - line.count("\\|") == 7 for line in lines)
