"""The process group: the rows of each rank, and where the error of a rank is looked for."""

import json
import os
import platform
import subprocess

import pytest
import torch

from dpexp.config.errors import Terminated
from dpexp.config.mesh import Mesh
from dpexp.distributed import faults
from dpexp.distributed.faults import Faults, LostContact, PeerError
from dpexp.distributed.group import ProcessGroup
from dpexp.distributed.world import Member

MEMBERS = (Member(0, "a"), Member(1, "a"), Member(2, "b"))
BROKEN = RuntimeError("[gloo] Connection closed by peer")


@pytest.mark.parametrize(("rows", "ranks"), [(30, 8), (10, 8), (9, 4), (1, 3), (100, 7)])
def test_rows_are_split_as_tensor_chunk_splits_them(rows: int, ranks: int) -> None:
    found = []
    for rank in range(ranks):
        group = ProcessGroup()
        group.rank, group.mesh = rank, Mesh.of_rows(ranks)
        found.append(list(range(rows))[group.rows(rows)])
    expected = [piece.tolist() for piece in torch.arange(rows).chunk(ranks)]
    assert found == expected + [[]] * (ranks - len(expected))


def test_a_broken_connection_is_traced_to_the_error_of_the_peer() -> None:
    store = torch.distributed.HashStore()
    own = ValueError("row 7 is odd")
    assert Faults(store, 2, MEMBERS, timeout_s=60).root_cause(own) is own
    found = Faults(store, 0, MEMBERS, timeout_s=60).root_cause(BROKEN)
    assert isinstance(found, PeerError)
    assert not isinstance(found, LostContact)
    assert str(found) == "rank 2 on host b: ValueError: row 7 is odd"
    assert found.kind == "ValueError"
    assert "ValueError: row 7 is odd" in found.traceback


@pytest.mark.parametrize(
    ("texts", "expected"),
    [({1: "a", 2: "a"}, True), ({1: "a", 2: "b"}, False), ({1: "a"}, False), ({}, False)],
)
def test_ranks_have_all_failed_only_if_each_has_the_same_error(texts: dict[int, str], expected: bool) -> None:
    store = torch.distributed.HashStore()
    for rank, text in texts.items():
        store.set(f"profile/{rank}", text)
    assert Faults(store, 0, MEMBERS, timeout_s=0.2).all_failed("profile", "a") is expected


def test_ranks_that_report_nothing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "PATIENCE_S", 0.2)
    store = torch.distributed.HashStore()
    store.set("lost/1", "")
    found = Faults(store, 0, MEMBERS, timeout_s=60).root_cause(BROKEN)
    assert isinstance(found, LostContact)
    assert str(found).startswith("lost contact with rank 2 on host b: it was killed or is blocked")


def test_a_rank_of_this_host_that_has_ended_without_a_report_was_killed() -> None:
    """At once, whether this rank sees a broken connection or torchrun terminates it."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    members = (Member(0, platform.node(), os.getpid()), Member(1, platform.node(), ended.pid))
    rank_0 = Faults(torch.distributed.HashStore(), 0, members, timeout_s=60)
    for error in (BROKEN, Terminated("ended by SIGTERM")):
        found = rank_0.root_cause(error)
        assert isinstance(found, LostContact)
        assert str(found).startswith(f"lost contact with rank 1 on host {platform.node()}: it was killed")


def test_a_signal_to_all_ranks_is_the_error_of_each() -> None:
    store = torch.distributed.HashStore()
    for rank in (1, 0):
        terminated = Terminated("ended by SIGTERM")
        assert Faults(store, rank, MEMBERS, timeout_s=60).root_cause(terminated) is terminated
    found = Faults(store, 2, MEMBERS, timeout_s=60).root_cause(BROKEN)
    assert str(found) == "rank 0 on host a: Terminated: ended by SIGTERM"


def test_an_error_that_was_reported_is_a_line_of_json() -> None:
    store = torch.distributed.HashStore()
    Faults(store, 1, MEMBERS, timeout_s=60).root_cause(ValueError("a"))
    assert set(json.loads(store.get("failed/1"))) == {"type", "message", "traceback"}
