"""The process group: the rows of each rank, and where the error of a rank is looked for."""

import json
import time

import pytest
import torch

from dpexp.config.errors import Terminated
from dpexp.config.mesh import Mesh
from dpexp.distributed.faults import Faults, LostContact, PeerError, RollCallThread
from dpexp.distributed.process_group import ProcessGroup
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


def test_ranks_that_do_not_answer_are_named() -> None:
    store = torch.distributed.HashStore()
    store.set("present/1", "")
    found = Faults(store, 0, MEMBERS, timeout_s=0.5).root_cause(BROKEN)
    assert isinstance(found, LostContact)
    assert str(found).startswith("lost contact with rank 2 on host b: it was killed")


def answering(store: torch.distributed.HashStore, rank: int) -> None:
    """Let a rank answer a roll call."""
    thread = RollCallThread(store, rank)
    store.set(f"call/{rank}", "")
    thread.join(1000)
    assert not thread.is_alive()


def test_a_rank_that_waits_in_a_collective_is_not_called_lost() -> None:
    """Rank 1 waits for rank 0, which calls the roll; rank 2 was killed."""
    store = torch.distributed.HashStore()
    answering(store, 1)
    found = Faults(store, 0, MEMBERS, timeout_s=0.5).root_cause(BROKEN)
    assert str(found).startswith("lost contact with rank 2 on host b: it was killed")
    assert store.check(["call/2"])


def test_a_rank_that_is_alive_but_takes_no_part_is_named() -> None:
    store = torch.distributed.HashStore()
    store.set("present/2", "")
    answering(store, 1)
    found = Faults(store, 0, MEMBERS, timeout_s=0.5).root_cause(BROKEN)
    assert str(found).startswith("rank 1 on host a did not take part in a collective in time")


def test_a_signal_that_follows_from_the_end_of_a_rank_is_explained_by_it() -> None:
    """torchrun terminates rank 0 when rank 2 was killed; a scheduler terminates all of them."""
    store = torch.distributed.HashStore()
    terminated = Terminated("ended by SIGTERM")
    rank_0 = Faults(store, 0, MEMBERS, timeout_s=60)
    answering(store, 1)
    found = rank_0.peer_error_or(terminated)
    assert str(found).startswith("lost contact with rank 2 on host b: it was killed")
    answering(store, 2)
    assert rank_0.peer_error_or(terminated) is terminated


def test_a_thread_that_answers_roll_calls_ends_before_the_interpreter() -> None:
    thread = RollCallThread(torch.distributed.HashStore(), 1)
    thread.stop()
    assert not thread.is_alive()


def test_a_terminated_rank_does_not_wait_for_its_peers() -> None:
    """SIGTERM during the roll call: the ranks that do not answer soon are lost."""
    asked: list[float] = []

    def is_terminated() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 3

    found = Faults(torch.distributed.HashStore(), 0, MEMBERS, timeout_s=600).root_cause(BROKEN, is_terminated)
    assert isinstance(found, LostContact)
    assert "rank 2 on host b" in str(found)
    assert len(asked) > 3


def test_an_error_that_was_reported_is_a_line_of_json() -> None:
    store = torch.distributed.HashStore()
    Faults(store, 1, MEMBERS, timeout_s=60).root_cause(ValueError("a"))
    assert set(json.loads(store.get("failed/1"))) == {"type", "message", "traceback"}
