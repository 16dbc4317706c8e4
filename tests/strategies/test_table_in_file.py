"""A table in a file, as the docs show it: it is trained there, and not in memory."""

from pathlib import Path

import pytest
import torch
from helpers.printed import write_examples

import dpexp


def test_the_docs_table_in_a_file_is_trained_there(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_examples("docs/models-and-data.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    options = {"sparse": True, "optimizer": "adagrad", "virtual": 1, "steps": 20, "track": False}
    record = dpexp.run("hybrid", model="mapped.py:Ids:rows=3000,dim=16", **options)
    assert record.status == "finished"
    assert record.verification["passed"]
    (table,) = [
        row for row in record.device_map if row["module"] == "embedding" and row["kind"] == "parameter"
    ]
    assert (table["device"], table["shape"]) == ("cpu", [3000, 16])
    trained = torch.from_file("table.bin", size=3000 * 16).view(3000, 16)
    torch.manual_seed(0)
    drawn = torch.cat([part.normal_() for part in torch.empty(3000, 16).split(65536)])
    changed = (trained != drawn).any(1)
    assert 0 < int(changed.sum()) <= 100, "the rows of 100 ids"
