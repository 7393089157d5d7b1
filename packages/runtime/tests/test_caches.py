"""Plan caches: what goes in comes out, whole or not at all."""

from __future__ import annotations

import dataclasses
import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from torchkiln_core import Binding, Plan, PlanFormatError, Target
from torchkiln_core.size import parse_size
from torchkiln_runtime import DiskPlanCache, MemoryPlanCache


def plan(key: str = "ab12", size: int = 1000) -> Plan:
    data = torch.arange(size, dtype=torch.int64).to(torch.uint8)
    inputs = (Binding("x", torch.bfloat16, (parse_size("n"), 3)),)
    outputs = (Binding("y", torch.int64, (parse_size("2*n + 1"),)), Binding("z", torch.bool, ()))
    return Plan(data, inputs, outputs, (("n", 0, 0),), Target("tensorrt_rtx", "1.6.1", ("sm_89", "sm_120")), key, 12.5, allow_tf32=True)


def assert_same(a: Plan, b: Plan) -> None:
    assert torch.equal(a.data, b.data)
    assert dataclasses.replace(a, data=b.data) == b


@pytest.fixture(params=["disk", "memory"])
def cache(request, tmp_path):
    return DiskPlanCache(tmp_path / "plans") if request.param == "disk" else MemoryPlanCache()


def test_plans_come_back(cache):
    assert cache.get("ab12") is None
    cache.put(plan())
    assert_same(cache.get("ab12"), plan())
    assert cache.get("other") is None
    assert len(cache) == 1


def test_a_plan_replaces_one_of_its_key(cache):
    cache.put(plan(size=10))
    cache.put(plan(size=20))
    assert cache.get("ab12").data.numel() == 20
    assert len(cache) == 1


def test_clear_removes_all(cache):
    cache.put(plan("a"))
    cache.put(plan("b"))
    cache.clear()
    assert cache.get("a") is None
    assert len(cache) == 0


def test_memory_keeps_those_used_last():
    cache = MemoryPlanCache(2)
    cache.put(plan("a"))
    cache.put(plan("b"))
    cache.get("a")
    cache.put(plan("c"))
    assert [key for key in "abc" if cache.get(key) is not None] == ["a", "c"]
    with pytest.raises(ValueError, match="at least 1"):
        MemoryPlanCache(0)


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_data_of_any_size_is_kept(tmp_path, size):
    cache = DiskPlanCache(tmp_path)
    cache.put(plan(size=size))
    assert_same(cache.get("ab12"), plan(size=size))


@pytest.mark.parametrize("where", range(0, 1300, 41))
def test_a_changed_byte_drops_the_entry(tmp_path, caplog, where):
    cache = DiskPlanCache(tmp_path)
    cache.put(plan())
    (path,) = tmp_path.glob("*.plan")
    content = bytearray(path.read_bytes())
    content[where] ^= 0x40
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "torchkiln.runtime"):
        assert cache.get("ab12") is None
    assert "damaged" in caplog.text
    assert not path.exists()
    cache.put(plan())
    assert_same(cache.get("ab12"), plan())


@pytest.mark.parametrize("length", [0, 5, 23, 54, 62, 63, 300, -1])
def test_a_truncated_entry_is_dropped(tmp_path, caplog, length):
    cache = DiskPlanCache(tmp_path)
    cache.put(plan())
    (path,) = tmp_path.glob("*.plan")
    path.write_bytes(path.read_bytes()[:length])
    with caplog.at_level(logging.WARNING, "torchkiln.runtime"):
        assert cache.get("ab12") is None
    assert "damaged" in caplog.text


def test_an_entry_under_another_key_is_dropped(tmp_path, caplog):
    cache = DiskPlanCache(tmp_path)
    cache.put(plan("a"))
    os.rename(tmp_path / "a.plan", tmp_path / "b.plan")
    with caplog.at_level(logging.WARNING, "torchkiln.runtime"):
        assert cache.get("b") is None
    assert "holds the plan 'a'" in caplog.text


@pytest.mark.parametrize("key", ["../evil", "", "a/b", "x" * 300, "a.b"])
def test_keys_cannot_leave_the_directory(tmp_path, key):
    with pytest.raises(PlanFormatError, match="not the key"):
        DiskPlanCache(tmp_path).get(key)


def test_a_failed_write_leaves_no_trace_and_is_logged(tmp_path, caplog, monkeypatch):
    def fail(source: str, target: str) -> None:
        raise OSError("disk full")

    cache = DiskPlanCache(tmp_path)
    monkeypatch.setattr(os, "replace", fail)
    with caplog.at_level(logging.WARNING, "torchkiln.runtime"):
        cache.put(plan())
    assert "disk full" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_writers_and_readers_at_once(tmp_path):
    cache = DiskPlanCache(tmp_path)

    def work(index: int) -> bool:
        cache.put(plan(size=100_000))
        found = cache.get("ab12")
        return found is not None and found.data.numel() == 100_000

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(16)))
    assert [path.name for path in tmp_path.iterdir()] == ["ab12.plan"]
