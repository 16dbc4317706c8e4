"""Mapped tables: a table in a file has the bits of the table in memory, and is not in memory."""

import re
from itertools import islice
from pathlib import Path
from typing import Any

import launching
import pytest
import torch
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import Prepared, prepare
from dpexp.engine.prepare_ranks import prepare_ranks
from dpexp.engine.verify import verify
from dpexp.strategies.hybrid import mapped_tables
from dpexp.strategies.hybrid.mapped_tables import MappedTables, amount
from dpexp.strategies.modules.tables import is_mapped
from dpexp.timing import Timer
from dpexp.verification import touched_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tables"
    made.mkdir()
    return made


TABLE = 1_000_003  # rows of a table of 128 MB: not a multiple of a block, nor of a chunk


@pytest.fixture
def small_tables_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_tables, "_LARGE", 64)
    monkeypatch.setattr(mapped_tables, "_CHUNK", 32)


def mapped_addresses(folder: Path) -> list[range]:
    """The addresses of this process at which files of the folder are mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split()[0].split("-") for line in lines if f" {folder}/" in line]
    return [range(int(first, 16), int(end, 16)) for first, end in found]


def is_in_file(tensor: torch.Tensor, folder: Path) -> bool:
    return any(tensor.data_ptr() in addresses for addresses in mapped_addresses(folder))


def hybrid(folder: Path | None, **values: Any) -> RunConfig:
    options = {"sparse": True} | ({"table_file": str(folder)} if folder else {}) | values.pop("options", {})
    values = {"model": "embedding:rows=300,dim=8", "virtual": 1, "batch_size": 10} | values
    return RunConfig("hybrid", options=options, **values)


def trained(prepared: Prepared, steps: int = 12) -> dict[str, torch.Tensor]:
    timer = Timer(prepared.selection.used)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
    prepared.trainer(placed).take_steps(islice(prepared.endless_batches(), steps))
    return {name: tensor.detach().clone() for name, tensor in placed.module.named_parameters()}


# --- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 8, 9, 16, 33, 34, 35, 36, 64, 65])
@pytest.mark.parametrize(
    "fill",
    [
        lambda weight: None,  # as nn.Embedding draws it
        lambda weight: weight.data.uniform_(-0.1, 0.1),
        lambda weight: nn.init.normal_(weight, std=0.3),
        lambda weight: nn.init.xavier_uniform_(weight),
        lambda weight: nn.init.constant_(weight, 7.0),
        lambda weight: nn.init.zeros_(tensor=weight),
        lambda weight: weight.data.normal_(generator=torch.Generator().manual_seed(7)),
    ],
)
@pytest.mark.usefixtures("small_tables_are_large")
def test_table_in_a_file_is_drawn_as_in_memory(folder: Path, rows: int, fill: Any) -> None:
    def made() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(5)
        table = nn.Embedding(rows, 9, padding_idx=rows // 2)
        fill(table.weight)
        return table.weight, torch.rand(3)

    expected, next_draws = made()
    with MappedTables(folder):
        found, draws = made()
    assert is_in_file(found, folder) == (rows * 9 >= 64)
    assert torch.equal(found, expected)
    assert torch.equal(draws, next_draws)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("model", ["embedding:rows=300,dim=8", "dlrm:rows=40,tables=5,fused=false"])
@pytest.mark.usefixtures("small_tables_are_large")
def test_training_gives_the_bits_of_a_table_in_memory(folder: Path, model: str, optimizer: str) -> None:
    in_memory, in_file = (
        prepare(hybrid(place, model=model, optimizer=optimizer)) for place in (None, folder)
    )
    tables = [part.weight for part in in_file.model.modules() if isinstance(part, nn.Embedding)]
    assert all(is_mapped(table) and is_in_file(table, folder) for table in tables)
    assert verify(in_file).passed
    expected, found = trained(in_memory), trained(in_file)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.usefixtures("small_tables_are_large")
def test_tables_of_the_host_modules_lie_in_files_and_nothing_else_does(folder: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Embedding(100, 8), nn.Embedding(3, 2)
            self.given = nn.Embedding.from_pretrained(torch.randn(50, 8))
            self.dense, self.linear = nn.Embedding(100, 8), nn.Linear(40, 40)

    with MappedTables(folder) as tables:
        model = Model()
    weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    tables.settle(model, [model.large, model.small, model.given])
    in_files = {name for name, tensor in model.named_parameters() if is_in_file(tensor, folder)}
    assert in_files == {"large.weight", "small.weight", "given.weight"}
    assert in_files == {name for name, tensor in model.named_parameters() if is_mapped(tensor)}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.named_parameters())
    assert len(mapped_addresses(folder)) == 3
    assert list(folder.iterdir()) == []
    del model, tables
    assert mapped_addresses(folder) == []


# --- memory --------------------------------------------------------------------------------------


def anonymous_bytes() -> int:
    """Memory of this process that is not that of a file."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+)", status)[0]) * 1024


def test_run_of_a_large_table_takes_no_memory_of_its_size(folder: Path) -> None:
    before = anonymous_bytes()
    prepared = prepare(hybrid(folder, model=f"embedding:rows={TABLE},dim=32"))
    assert verify(prepared).passed
    trained_table = prepared.model.embedding
    timer = Timer(prepared.selection.used)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
    prepared.trainer(placed).take_steps(islice(prepared.endless_batches(), 3))
    assert is_in_file(trained_table.weight, folder)  # type: ignore[union-attr, arg-type]
    assert anonymous_bytes() - before < TABLE * 32 * 4 / 2


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"options": {"sparse": False}}, "a dense gradient takes as much memory as its table; give --sparse"),
        ({"optimizer": "adagrad"}, r"adagrad keeps as many numbers .* use rowwise_adagrad or sgd"),
        ({"optimizer": "adam"}, r"adam keeps as many numbers .* use rowwise_adagrad or sgd"),
        ({"dtype": "float64"}, "keeps tables as float32, found --dtype float64"),
        ({"model": "blocks", "options": {"host": ("block1",), "sparse": False}}, "have no embedding"),
        ({"options": {"snapshot_every": 5}}, "--snapshot-every copies them"),
        ({"options": {"resume": "last"}}, "--resume copies them"),
        ({"options": {"shard_embedding": True}}, "--shard-embedding copies them"),
    ],
)
def test_what_needs_the_table_in_memory_is_refused(folder: Path, values: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        prepare(hybrid(folder, **values))
    assert list(folder.iterdir()) == []


def test_run_saves_no_snapshot_of_a_table_in_a_file(folder: Path) -> None:
    """Nor when it receives SIGTERM, at which other runs do."""
    in_memory, in_file = (prepare_ranks(hybrid(place), None) for place in (None, folder))
    assert in_memory.snapshots is not None
    assert in_file.snapshots is None


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    expected = re.escape(f"--table-file {tmp_path}/file: a table of (300, 8) cannot be")
    with pytest.raises(ConfigError, match=expected):
        prepare(hybrid(tmp_path / "file"))


def test_table_that_is_larger_than_the_disk_is_refused_with_both_sizes(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes 40000.0 GB, and [\d.]+ [GM]B are free"):
        prepare(hybrid(folder, model="embedding:rows=1000000000000"))
    assert [amount(count) for count in (12_800_000, 4 * 10**9)] == ["12.8 MB", "4.0 GB"]


@pytest.mark.usefixtures("small_tables_are_large")
def test_folder_that_is_missing_is_not_made(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    prepared = prepare(hybrid(tmp_path / "missing" / "too"))
    assert is_in_file(prepared.model.embedding.weight, tmp_path)  # type: ignore[union-attr, arg-type]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("small_tables_are_large")
def test_table_that_verification_would_copy_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpexp.engine.verify.LARGE", 64)
    monkeypatch.setattr(touched_rows, "LARGE", 64)
    with pytest.raises(ConfigError, match=r"would copy embedding.weight to memory, .*--no-check"):
        verify(prepare(hybrid(folder, model="embedding:rows=20,dim=8")))


# --- a run ---------------------------------------------------------------------------------------


def test_record_says_where_the_table_lies_and_has_the_digests_of_one_in_memory(folder: Path) -> None:
    words = ("hybrid", "--sparse", "--virtual", "1", "--steps", "5")
    in_memory = launching.run(*words, "--json")
    in_file = launching.run(*words, "--pipeline", "--table-file", str(folder), "--json")
    then, now = (launching.record(result) for result in (in_memory, in_file))
    assert now["digest"] == then["digest"]
    assert now["steps"]["loss"] == then["steps"]["loss"]
    assert [row["module"] for row in now["device_map"] if row.get("mapped")] == ["embedding"]
    assert list(folder.iterdir()) == []
