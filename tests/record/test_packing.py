"""Packed rows: what a journal holds of shapes and device map is small, and folds to the rows."""

import random
from pathlib import Path
from typing import Any

import pytest

from dpexp.record.journal import Journal
from dpexp.record.packing import pack, unpack
from dpexp.record.record import fold


def shapes_of(modules: int, replicas: int, batches: list[int]) -> list[dict[str, Any]]:
    """The rows of a chain of equal modules in replicas, as the engine orders them."""
    rows = []
    for batch, size in enumerate(batches):
        common = {"batch": batch, "replica": None, "device": "cpu:0"}
        rows.append(
            common | {"scope": "outside", "module": "", "inputs": [[size, 5]], "outputs": [[size, 2]]}
        )
        for module in range(modules):
            for replica in range(replicas):
                common = {"batch": batch, "scope": "replica", "module": str(module), "replica": replica}
                shapes = {"inputs": [[size // replicas, 5]], "outputs": [[size // replicas, 5]]}
                rows.append(common | {"device": f"cpu:{replica}"} | shapes)
    return rows


def device_map_of(modules: int, replicas: int) -> list[dict[str, Any]]:
    common = {"kind": "parameter", "dtype": "float32", "device": "cpu:0"}
    others = [f"cpu:{replica}" for replica in range(1, replicas)]
    return [
        common | {"module": str(module), "parameter": name, "shape": shape, "bytes": 100, "replicas": others}
        for module in range(modules)
        for name, shape in (("weight", [5, 5]), ("bias", [5]))
    ]


def test_a_deep_model_makes_a_small_journal_that_folds_to_every_row(tmp_path: Path) -> None:
    shapes, device_map = shapes_of(5000, 8, [30, 30, 30, 10]), device_map_of(5000, 8)
    journal = Journal(tmp_path / "runs", "deep")
    journal.set(shapes=pack(shapes), device_map=pack(device_map))
    journal.close()
    assert journal.path.stat().st_size < 500_000
    record = fold(journal.path)
    assert not record.damage
    assert record.shapes == shapes
    assert record.device_map == device_map


@pytest.mark.parametrize("seed", range(20))
def test_unpacked_rows_are_the_rows(seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        {
            "module": rng.choice(["", "a", "a.b"]),
            "replica": rng.choice([None, 0, 1]),
            "inputs": [[rng.randint(1, 2), 5]],
        }
        | ({"batch": rng.randint(0, 2)} if seed % 2 else {})
        for _ in range(rng.randint(0, 60))
    ]
    assert unpack(pack(rows)) == rows


def test_the_rows_of_an_older_journal_are_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs", "older")
    journal.set(shapes=shapes_of(2, 2, [4]))
    journal.close()
    assert fold(journal.path).shapes == shapes_of(2, 2, [4])
