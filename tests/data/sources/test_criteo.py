"""Criteo: a click log is read as a stream, with the same ids in every process."""

import gzip
import os
import random
import re
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import named
import pytest
import torch

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.data.dataset import Dataset
from dpexp.data.sources import criteo
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify

COLUMNS = 26


def lines(count: int, seed: int = 0) -> list[str]:
    """So many lines; a tenth of the integers and categories is empty, some integers are negative."""
    rng = random.Random(seed)

    def integer() -> str:
        return "" if rng.random() < 0.1 else str(int(rng.paretovariate(0.5)) - 2)

    def category() -> str:
        return "" if rng.random() < 0.1 else f"{min(int(rng.paretovariate(0.7)), 2**32 - 1):08x}"

    return [
        "\t".join(
            [str(rng.randrange(2)), *(integer() for _ in range(13)), *(category() for _ in range(COLUMNS))]
        )
        for _ in range(count)
    ]


def write(path: Path, found: list[str]) -> Path:
    """A file of these lines, compressed if its name ends in .gz."""
    content = "".join(f"{line}\n" for line in found).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def opened(path: Path, rows: int = 50) -> Dataset:
    source = named.source(f"criteo:{path},rows={rows}")
    return source.dataset(named.build("dlrm:dim=4,hidden=8", source.features), 0)


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        list(opened(path).batches(4))
    assert str(caught.value).startswith(f"--data criteo:{path},rows=50: ")
    return str(caught.value)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write(tmp_path / "log.tsv", lines(50))


def line(label: str = "1", integers: tuple[str, ...] = (), categories: tuple[str, ...] = ()) -> str:
    padded = [*integers, *[""] * (13 - len(integers)), *categories, *[""] * (26 - len(categories))]
    return "\t".join([label, *padded])


def test_fields_become_features_ids_and_clicks(tmp_path: Path) -> None:
    path = write(tmp_path / "log.tsv", [line("1", ("0", "-2", "", "6"), ("68fd1e64",)), line("0")])
    batch = next(opened(path).batches(2))
    dense, ids = batch.inputs
    assert dense[0, :4].tolist() == pytest.approx([0, 0, 0, torch.tensor(7.0).log().item()])
    assert (dense.shape, dense.dtype, ids.shape, ids.dtype) == ((2, 13), torch.float32, (2, 26), torch.int64)
    assert batch.targets.tolist() == [1.0, 0.0]
    assert torch.equal(ids[0, 1:], ids[1, 1:])
    assert ids[0, 0] != ids[1, 0]


def test_hashing_is_fixed() -> None:
    """Every process and version must give a category the same row: these numbers may never change."""
    categories = torch.tensor([[0x68FD1E64, 0x68FD1E64, -1], [0, 0xFFFFFFFF, 0]])
    assert criteo.hashed(categories, 1_000_000).tolist() == HASHED


HASHED = [[341099, 290569, 35517], [0, 933033, 285809]]


def test_hashed_ids_are_spread_evenly_and_differ_by_column() -> None:
    ids = criteo.hashed(torch.arange(20_000).repeat(2, 1).T.contiguous(), 100)
    counts = torch.stack([torch.bincount(column, minlength=100) for column in ids.T]).double()
    assert ((counts - 200) ** 2 / 200).sum(1).max().item() < 160  # chi-squared, 99 degrees, p = 0.0001
    assert (ids[:, 0] == ids[:, 1]).double().mean().item() < 0.02


def test_batches_follow_the_file_in_every_epoch(log: Path) -> None:
    dataset = opened(log)
    assert dataset.samples == 50
    clicks = [float(text[0]) for text in lines(50)]
    for epoch in (0, 1):
        batches = list(dataset.batches(12, seed=3, epoch=epoch))
        assert [batch.rows for batch in batches] == [12, 12, 12, 12, 2]
        assert torch.cat([batch.targets for batch in batches]).tolist() == clicks


@pytest.mark.parametrize("name", ["log.tsv", "log.gz"])
def test_batches_from_any_number_on_and_parts_of_ranks(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criteo, "_BLOCK", 2000)  # several marks in a small file
    dataset = opened(write(tmp_path / name, lines(50)))
    batches = list(dataset.batches(7))
    for first in range(9):
        for rank_rows in (lambda rows: slice(0, rows // 2), lambda rows: slice(rows // 2, rows)):
            found = list(dataset.batches(7, first=first, rank_rows=rank_rows))
            expected = [batch.part(rank_rows) for batch in batches[first:]]
            assert [batch.rows for batch in found] == [batch.rows for batch in expected]
            for one, other in zip(found, expected, strict=True):
                for a, b in zip((*one.inputs, one.targets), (*other.inputs, other.targets), strict=True):
                    assert torch.equal(a, b)


def test_digest_is_of_the_lines(tmp_path: Path, log: Path) -> None:
    compressed = opened(write(tmp_path / "log.gz", lines(50)))
    other = opened(write(tmp_path / "other.tsv", lines(50, seed=1)))
    assert opened(log).digest == compressed.digest != other.digest


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo, "_BLOCK", 1 << 14)
    path = tmp_path / "log.tsv"
    part = "".join(f"{text}\n" for text in lines(100))
    with open(path, "w") as file:
        for _ in range(100):
            file.write(part)
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0
    dataset = opened(path)
    tracemalloc.start()
    try:
        for batch in dataset.batches(100):
            alive.add(batch.targets)
            most = max(most, len(alive))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert dataset.samples == 10_000
    assert most <= 2
    assert peak < path.stat().st_size / 4  # the Python objects of one batch of 1% of the lines


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("hello", "has 1 field, found 'hello': a line of Criteo's format has 40"),
        ("", "has 1 field, found ''"),
        (line() + "\t", "has 41 fields"),
        (line("2"), "field 1, the label, must be 0 or 1, found '2'"),
        (line("1", ("7", "1.5")), "field 3, the integer, must be empty or an integer, found '1.5'"),
        (line("1", ("-",)), "field 2, the integer, must be empty or an integer, found '-'"),
        (line("1", (), ("", "0x1f")), "field 16, the category, must be empty or up to 8 hexadecimal digits"),
        (line("1", (), ("123456789",)), "field 15, the category"),
    ],
)
@pytest.mark.parametrize("before", [0, 2, 9])
def test_error_names_the_line_and_the_field(tmp_path: Path, bad: str, words: str, before: int) -> None:
    path = write(tmp_path / "log.tsv", [*lines(before), bad, *lines(2)])
    assert f"line {before + 1} of {path}" in refused(path)
    assert words in refused(path)


def test_any_change_of_a_line_is_read_or_an_error_that_names_it(tmp_path: Path) -> None:
    rng = random.Random(0)
    good, read = lines(20), 0
    for _ in range(300):
        text = bytearray(rng.choice(good).encode())
        for _ in range(rng.randrange(1, 3)):
            place = rng.randrange(len(text))
            text[place : place + rng.randrange(2)] = rng.choice(ODD)
        path = tmp_path / "log.tsv"
        path.write_bytes(good[0].encode() + b"\n" + text + b"\n" + good[1].encode())
        found = None
        with suppress(ConfigError):
            (found,) = opened(path).batches(10)
        if found is None:
            assert re.search(rf"line [23] of {re.escape(str(path))}", refused(path))
            continue
        read += 1
        dense, ids = found.inputs
        assert bool(dense.isfinite().all())
        assert bool(((ids >= 0) & (ids < 50)).all())
    assert 10 < read < 290


ODD = (b"", b"\t", b"\n", b"\r", b"0", b"-", b"f", b"g", b" ", b"_", b"+", b"0x", b"\0", b"\xff", b"9" * 20)


def test_error_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert f"there is no file {tmp_path}/nothing.tsv" in refused(tmp_path / "nothing.tsv")
    assert "is not a regular file" in refused(tmp_path)
    (tmp_path / "empty.tsv").write_text("")
    assert "is empty" in refused(tmp_path / "empty.tsv")
    with pytest.raises(ConfigError, match=r"criteo: it needs FILE"):
        named.source("criteo")
    cut = write(tmp_path / "cut.gz", lines(500))
    cut.write_bytes(cut.read_bytes()[:-100])
    assert "cannot be read: Compressed file ended before" in refused(cut)


def test_file_without_an_end_of_line_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(64 << 30)  # sparse: 64 GiB that use no disk space
    assert "line 1" in refused(path)


CHANGES = {
    "emptied": lambda content: b"",
    "a line lost": lambda content: content.partition(b"\n")[2],
    "a digit changed": lambda content: content[:400] + bytes([content[400] ^ 1]) + content[401:],
    "lines swapped": lambda content: b"\n".join([*reversed(content.splitlines()), b""]),
    "a line before": lambda content: f"{line()}\n".encode() + content,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("is_renamed", [False, True])
def test_file_that_changes_during_a_run_is_an_error(
    log: Path, change: Callable[[bytes], bytes], is_renamed: bool
) -> None:
    os.utime(log, ns=(0, 0))
    dataset = opened(log)
    list(dataset.batches(12))
    changed = change(log.read_bytes())
    if is_renamed:
        log.with_name("new").write_bytes(changed)
        log.with_name("new").rename(log)
    else:
        log.write_bytes(changed)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no longer begins with the 50 lines that it had when the run"):
            list(dataset.batches(12, epoch=1))


def test_lines_that_are_added_during_a_run_are_not_read(log: Path) -> None:
    dataset = opened(log)
    before = [batch.targets.tolist() for batch in dataset.batches(12)]
    with open(log, "a") as file:
        file.write("half a li")
    assert [batch.targets.tolist() for batch in dataset.batches(12)] == before


# --- in a run ------------------------------------------------------------------------------------


SPARSE = {"virtual": 1, "options": {"sparse": True}}


@pytest.mark.parametrize(
    ("strategy", "values"),
    [
        ("whole", {"virtual": 2}),
        ("hybrid", {"virtual": 2}),
        *[
            ("hybrid", {**SPARSE, "optimizer": name})
            for name in ("sgd", "rowwise_adagrad", "adam", "adagrad")
        ],
        ("hybrid", {"virtual": 1, "options": {"sparse": True, "pipeline": True}}),
    ],
)
def test_model_trains_on_a_log_as_on_a_single_device(log: Path, strategy: str, values: Any) -> None:
    text = f"criteo:{log},rows=50"
    config = RunConfig(strategy, model="dlrm:dim=4,hidden=8", data=text, batch_size=12, **values)
    assert verify(prepare(config)).passed


def test_bad_line_is_found_before_the_run_or_when_it_is_read(tmp_path: Path) -> None:
    found = lines(50)
    config = RunConfig("single", model="dlrm:dim=4,hidden=8", data=f"criteo:{tmp_path}/log.tsv", batch_size=5)
    write(tmp_path / "log.tsv", [*found[:3], "x", *found[4:]])
    with pytest.raises(ConfigError, match=r"line 4 of .* has 1 field"):
        prepare(config)
    write(tmp_path / "log.tsv", [*found[:49], found[49][:-30]])
    with pytest.raises(ConfigError, match=r"line 50 of .* has \d+ fields"):
        prepare(config)
    write(tmp_path / "log.tsv", [*found[:30], "x", *found[31:]])
    prepared = prepare(config)
    with pytest.raises(ConfigError, match=r"line 31 of .* has 1 field"):
        list(prepared.batches(0))
