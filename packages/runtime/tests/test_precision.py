"""The first build or context decides on TF32 for the process; the user's environment is respected and given back."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

import pytest

from torchkiln_core import BuildError, BuildOptions, PlanError
from torchkiln_runtime import Library, TensorRTBuilder, find_library, precision
from torchkiln_runtime.library import Messages
from torchkiln_runtime.precision import check_tf32, effective_tf32, tf32_of_process, tf32_scope

VARIABLE = "NVIDIA_TF32_OVERRIDE"
RTX = Library("tensorrt_rtx", "1.6.1.120", None, Messages(), None)
DATA_CENTRE = Library("tensorrt", "10.14", None, Messages(), None)


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    """As if the library had read nothing yet."""
    monkeypatch.setattr(precision, "_process", precision._Process())
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)


@pytest.mark.parametrize(("allow", "users", "inside"), [(False, None, "0"), (False, "0", "0"), (True, None, None), (True, "1", None)])
def test_the_variable_is_ours_inside_and_the_users_again_after(monkeypatch, allow, users, inside):
    if users is not None:
        monkeypatch.setenv(VARIABLE, users)
    for _ in range(2):
        with tf32_scope(RTX, allow, BuildError):
            assert os.environ.get(VARIABLE) == inside
        assert os.environ.get(VARIABLE) == users
    with pytest.raises(RuntimeError, match="boom"), tf32_scope(RTX, allow, BuildError):
        raise RuntimeError("boom")
    assert os.environ.get(VARIABLE) == users


def test_scopes_nest_and_overlap_between_threads():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with tf32_scope(RTX, False, BuildError):
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with tf32_scope(RTX, False, BuildError):
        thread.start()
        assert entered.wait(30)
        with tf32_scope(RTX, False, PlanError):
            assert os.environ[VARIABLE] == "0"
    assert os.environ[VARIABLE] == "0"
    assert effective_tf32(RTX, True)
    leave.set()
    thread.join()
    assert VARIABLE not in os.environ


@pytest.mark.parametrize(("first", "words"), [(False, "TF32 on, but .* TF32 off"), (True, "TF32 off, but .* TF32 on")])
@pytest.mark.parametrize("error", [BuildError, PlanError])
def test_the_first_decides(first, words, error):
    with tf32_scope(RTX, first, BuildError):
        pass
    with pytest.raises(error, match=rf"(?s)tensorrt_rtx 1\.6.*{words}.*fix: use one allow_tf32"), tf32_scope(RTX, not first, error):
        pass
    with pytest.raises(error, match=words):
        check_tf32(RTX, not first, error)
    check_tf32(RTX, first, error)
    assert tf32_of_process(RTX, not first) is first
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("allow", [False, True])
def test_asking_decides_nothing(allow):
    check_tf32(RTX, allow, PlanError)
    assert tf32_of_process(RTX, allow) is allow
    assert effective_tf32(RTX, allow) is allow
    check_tf32(RTX, not allow, PlanError)


def test_tf32_that_the_user_turned_off_stays_off_and_is_said_once(monkeypatch, caplog):
    monkeypatch.setenv(VARIABLE, "0")
    with caplog.at_level(logging.WARNING):
        assert [effective_tf32(RTX, allow) for allow in (True, True, False)] == [False] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "allow_tf32=True has no effect: the environment variable NVIDIA_TF32_OVERRIDE=0 turns TF32 off"
    ]
    with pytest.raises(PlanError, match=r"(?s)plan with allow_tf32=True: .*=0 turns TF32 off.*fix: unset"):
        check_tf32(RTX, True, PlanError)


@pytest.mark.parametrize("value", ["1", "", "yes"])
def test_tf32_that_the_user_turned_on_is_not_turned_off(monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(BuildError, match=f"unset or 0, got {value!r}") as caught, tf32_scope(RTX, False, BuildError):
        pass
    assert caught.value.fix == "unset NVIDIA_TF32_OVERRIDE, or compile with allow_tf32=True"
    assert tf32_of_process(RTX, True)
    with tf32_scope(RTX, True, BuildError):
        assert VARIABLE not in os.environ
    assert os.environ[VARIABLE] == value


def test_the_data_centre_library_has_its_flag(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0")
    for allow in (True, False, True):
        with tf32_scope(DATA_CENTRE, allow, BuildError):
            assert os.environ[VARIABLE] == "0"
        check_tf32(DATA_CENTRE, allow, PlanError)
        assert effective_tf32(DATA_CENTRE, allow) is allow
        assert tf32_of_process(DATA_CENTRE, allow) is allow


def test_keys_follow_what_takes_effect(monkeypatch, static_network, ahead):
    allowed, plain = (TensorRTBuilder(BuildOptions(targets=ahead.targets, allow_tf32=allow)).key(static_network) for allow in (True, False))
    assert allowed != plain
    monkeypatch.setenv(VARIABLE, "0")
    assert TensorRTBuilder(BuildOptions(targets=ahead.targets, allow_tf32=True)).key(static_network) == plain


@pytest.mark.skipif(find_library("tensorrt_rtx") is None, reason="tensorrt_rtx: TensorRT-RTX, which builds without a GPU, is not installed")
def test_a_process_builds_in_one_precision():
    script = """
import os, torch
from torchkiln_core import BuildError, BuildOptions, Network
from torchkiln_core.layers import Unary, UnaryOp
from torchkiln_runtime import TensorRTBuilder
net = Network()
net.output("y", net.add(Unary(UnaryOp.ABS), net.input("x", torch.float32, (1,))))
plan = TensorRTBuilder(BuildOptions(targets=("sm_89",), allow_tf32=True)).build(net)
assert plan.allow_tf32
try:
    TensorRTBuilder(BuildOptions(targets=("sm_89",))).build(net)
except BuildError as error:
    print(error.message)
"""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "expected to compute with TF32 off, but this process already uses it with TF32 on" in done.stdout
