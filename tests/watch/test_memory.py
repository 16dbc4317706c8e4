"""What a watch needs of memory, what is free, and that it ends before memory does."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from helpers.in_ranks import in_ranks
from loops import ended, mse, sgd, train, watch
from torch import nn
from torch.distributed.fsdp import fully_shard

from dpexp.distributed.group import ProcessGroup
from dpexp.watch import equal, expected, memory, update, weights
from dpexp.watch.memory import Memory
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import Replay
from dpexp.watch.shards import Shards


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.out = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x)


def need(replica: str, model: nn.Module, blocks: dict[str, list[str]]) -> int:
    found = Memory.of(named := dict(model.named_parameters()), None, blocks, Shards.of(named, LoopRanks()))
    return int(getattr(found, replica)) + found.others


def of_layers(model: Stack) -> dict[str, list[str]]:
    return {f"layers.{number}": [f"layers.{number}.weight", f"layers.{number}.bias"] for number in range(4)}


@pytest.mark.parametrize(("free", "blocks"), [("full", 0), ("blocks", 4)])
def test_the_replica_is_in_blocks_where_it_does_not_fit(
    free: str, blocks: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    available = need(free, model := Stack(), of_layers(model))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    run = train(watch(model, mse), model, sgd(model.parameters()))
    assert len(run._replay.blocks) == blocks
    assert run.verdict().steps == 3
    assert f"replica='{free}'" in capsys.readouterr().err


def test_all_ranks_end_before_one_has_no_memory() -> None:
    (by_rank,) = in_ranks(2, __file__, "short_on_one_rank").values()
    for found in by_rank:
        assert found["error"] == "NotComparableError", found
        assert "replica='blocks'" in found["words"]
        assert "0.00 GB are free on rank 1: watch a smaller model" in found["words"]


def short_on_one_rank(group: ProcessGroup) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        available = 10**9 * (1 - group.rank)
        patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
        run = watch(model := Stack(), mse)
        return ended(train(run, fully_shard(model), sgd(model.parameters())))


PLACES: tuple[tuple[Any, str], ...] = (
    (Replay, "_allocate"),
    (Replay, "_enter"),
    (weights, "factors_of"),
    (expected, "_zeros"),
    (expected, "sampled"),  # in a hook of the backward
    (equal, "updated"),
    (update, "updated"),
    (update, "compared"),  # after the step
)


def test_where_one_rank_has_no_memory_all_end_at_once_and_the_loop_goes_on() -> None:
    (by_rank,) = in_ranks(2, __file__, "fails_on_one_rank").values()
    for plain, *watched in by_rank:
        assert len(watched) == len(PLACES)
        for found in watched:
            assert found["error"] == ("" if found["at"] == "updated" else "NotComparableError"), found
            assert "no memory is left" in found["words"]
            assert found["parameters"] == plain["parameters"], found
            assert found["kept"] < 100, found
            assert found["seconds"] < 20, found


def fails_on_one_rank(group: ProcessGroup) -> list[dict[str, Any]]:
    def trained(run: Any, model: nn.Module) -> dict[str, Any]:
        begun = time.monotonic()
        train(run, fully_shard(model), sgd(model.parameters()))
        seconds = time.monotonic() - begun
        return {
            "seconds": seconds,
            "parameters": [each.full_tensor().tolist() for each in model.parameters()],
        }

    torch.manual_seed(0)
    found = [trained(SimpleNamespace(loss=mse), Stack())]
    for place, name in PLACES:
        torch.manual_seed(0)
        run = watch(model := Stack(), mse, replica="blocks")
        with pytest.MonkeyPatch.context() as patch:
            if group.is_first:
                patch.setattr(place, name, fails)
            end = trained(run, model)
        kept = sum(each.data.untyped_storage().nbytes() for each in run._replay._model.buffers())
        found.append(end | ended(run) | {"kept": kept, "at": name})
    return found


def fails(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("no memory is left")


def test_a_container_has_what_its_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (inner := tmp_path / "job" / "task").mkdir(parents=True)
    for folder, name, text in (
        (inner, "memory.max", "max"),
        (inner, "memory.current", "300"),
        (inner.parent, "memory.max", "1000"),
        (inner.parent, "memory.current", "700"),
        (inner.parent, "memory.stat", "anon 500\ninactive_file 150\nactive_file 50\n"),
        (tmp_path, "own", "0::/job/task\n"),
    ):
        (folder / name).write_text(text)
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "GROUPS", tmp_path)
    model = nn.Linear(2, 2)
    named = dict(model.named_parameters())
    assert Memory.of(named, None, {}, Shards.of(named, LoopRanks())).free == 500
