"""Faults: where the error of a rank is looked for, and which of several ended the run."""

import os
import platform
import subprocess

import pytest
import torch

from dpexp.config.errors import Terminated
from dpexp.distributed import faults
from dpexp.distributed.faults import Faults, LostContact, PeerError
from dpexp.distributed.world import Member

MEMBERS = (Member(0, "a", 7), Member(1, "a", 8), Member(2, "b", 7))
BROKEN = RuntimeError("[gloo] Connection closed by peer")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "PATIENCE_S", 0.2)


def of_rank(rank: int, store: torch.distributed.Store) -> Faults:
    return Faults(store, rank, MEMBERS, timeout_s=60)


def test_a_broken_connection_is_traced_to_the_error_of_the_peer() -> None:
    store = torch.distributed.HashStore()
    own = ValueError("row 7 is odd")
    assert of_rank(2, store).root_cause(own) is own
    found = of_rank(0, store).root_cause(BROKEN)
    assert isinstance(found, PeerError)
    assert not isinstance(found, LostContact)
    assert str(found) == "rank 2 on host b: ValueError: row 7 is odd"
    assert found.kind == "ValueError"
    assert "ValueError: row 7 is odd" in found.traceback


def test_ranks_that_report_nothing_are_named() -> None:
    store = torch.distributed.HashStore()
    store.set("lost/1", "")
    found = of_rank(0, store).root_cause(BROKEN)
    assert isinstance(found, LostContact)
    assert str(found).startswith("lost contact with rank 2 on host b: it was killed or is blocked")


def test_a_rank_of_this_host_that_was_killed_comes_before_errors_and_signals() -> None:
    """At once, whether this rank sees a broken connection or torchrun terminates it."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    host, store = platform.node(), torch.distributed.HashStore()
    members = [Member(rank, host, pid) for rank, pid in enumerate((os.getpid(), ended.pid, os.getpid()))]
    assert str(Faults(store, 2, members, 60).root_cause(error := ValueError("odd"))) == str(error)
    for signal in (BROKEN, Terminated("ended by SIGTERM")):
        found = Faults(store, 0, members, 60).root_cause(signal)
        assert isinstance(found, LostContact)
        assert str(found).startswith(f"lost contact with rank 1 on host {host}: it was killed")


def test_a_signal_to_all_ranks_is_the_error_of_each() -> None:
    store = torch.distributed.HashStore()
    for rank in (1, 0):
        terminated = Terminated("ended by SIGTERM")
        assert of_rank(rank, store).root_cause(terminated) is terminated
    found = of_rank(2, store).root_cause(BROKEN)
    assert str(found) == "rank 0 on host a: Terminated: ended by SIGTERM"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [({1: "a", 2: "a"}, True), ({1: "a", 2: "b"}, False), ({1: "a"}, False), ({}, False)],
)
def test_ranks_have_all_failed_only_if_each_has_the_same_error(texts: dict[int, str], expected: bool) -> None:
    store = torch.distributed.HashStore()
    for rank, text in texts.items():
        store.set(f"profile/{rank}", text)
    assert of_rank(0, store).all_failed("profile", "a") is expected
