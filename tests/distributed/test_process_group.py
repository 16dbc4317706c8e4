"""The process group: the rows of each rank, and where the error of a rank is looked for."""

from __future__ import annotations

import json
import time

import pytest
import torch

from dpexp.distributed.faults import ROLL_CALL_S, Faults, LostContact, PeerError
from dpexp.distributed.process_group import ProcessGroup
from dpexp.distributed.world import Member

MEMBERS = (Member(0, "a"), Member(1, "a"), Member(2, "b"))
BROKEN = RuntimeError("[gloo] Connection closed by peer")


@pytest.mark.parametrize(("rows", "ranks"), [(30, 8), (10, 8), (9, 4), (1, 3), (100, 7)])
def test_rows_are_split_as_tensor_chunk_splits_them(rows: int, ranks: int) -> None:
    found = []
    for rank in range(ranks):
        group = ProcessGroup()
        group.chunk, group.ranks_by_chunk = rank, tuple((each,) for each in range(ranks))
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


def test_ranks_that_do_not_answer_are_named() -> None:
    store = torch.distributed.HashStore()
    store.set("present/1", "")
    found = Faults(store, 0, MEMBERS, timeout_s=0.5).root_cause(BROKEN)
    assert isinstance(found, LostContact)
    assert str(found).startswith("lost contact with rank 2 on host b: it was killed")


def test_a_terminated_rank_does_not_wait_for_its_peers() -> None:
    """SIGTERM during the roll call: the ranks that do not answer soon are lost."""
    asked: list[float] = []

    def is_terminated() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 3

    found = Faults(torch.distributed.HashStore(), 0, MEMBERS, timeout_s=600).root_cause(BROKEN, is_terminated)
    assert isinstance(found, LostContact)
    assert "rank 2 on host b" in str(found)
    assert time.monotonic() - asked[0] < ROLL_CALL_S


def test_an_error_that_was_reported_is_a_line_of_json() -> None:
    store = torch.distributed.HashStore()
    Faults(store, 1, MEMBERS, timeout_s=60).root_cause(ValueError("a"))
    assert set(json.loads(store.get("failed/1"))) == {"type", "message", "traceback"}
