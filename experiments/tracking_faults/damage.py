"""What is done to the files and the store of a run that is whole and delivered, in ``soak.py``."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scene import mlflow_runs

from dpexp.record.journal.fold import finish
from dpexp.record.journal.journal import JOURNAL, RECORD, RESERVE, Journal
from dpexp.record.runs.sweep_records import RECORDS
from dpexp.tracking.delivery.ledger import LEDGER

Damage = Callable[[Path, random.Random], None]


def flip(path: Path, rng: random.Random) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def edit(path: Path, rng: random.Random, copies: int) -> None:
    """Replace a line of a journal, other than the first and last, by so many copies of it."""
    lines = path.read_bytes().splitlines(keepends=True)
    at = rng.randrange(1, len(lines) - 1)
    path.write_bytes(b"".join([*lines[:at], *lines[at : at + 1] * copies, *lines[at + 1 :]]))


def cut(path: Path, rng: random.Random) -> None:
    """Cut one to three whole lines from the end of a journal; its first line stays."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: -rng.randrange(1, min(4, len(lines)))]))


def delete_mlflow_run(folder: Path, rng: random.Random) -> None:
    """Delete a run in MLflow, as its page does."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parents[1] / 'mlflow.db'}")
    for mlflow_run in mlflow_runs(client, folder.name):
        client.delete_run(mlflow_run)


def rename_mlflow_run(folder: Path, rng: random.Random) -> None:
    """Give a run another name in MLflow, as its page does."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parents[1] / 'mlflow.db'}")
    for mlflow_run in mlflow_runs(client, folder.name):
        client.set_tag(mlflow_run, "mlflow.runName", "renamed")


def delete_artifacts(folder: Path, rng: random.Random) -> None:
    """Delete what MLflow has of a run's files."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parents[1] / 'mlflow.db'}")
    for mlflow_run in mlflow_runs(client, folder.name):
        shutil.rmtree(client.get_run(mlflow_run).info.artifact_uri.removeprefix("file://"))


def delete_database(folder: Path, rng: random.Random) -> None:
    """Delete the database of all runs."""
    for path in folder.parents[1].glob("mlflow.db*"):
        path.unlink()


def another(folder: Path, rng: random.Random) -> Path:
    """Another run that has ended, drawn at random."""
    others = sorted(path.parent for path in folder.parent.glob(f"*/{LEDGER}"))
    names = (RECORD, LEDGER)  # at this moment a FIFO, or a link to a device, may stand in their place
    return rng.choice(
        [each for each in others if each != folder and all((each / n).is_file() for n in names)]
    )


def replace_by_older(folder: Path, rng: random.Random) -> None:
    """Put the Record of an earlier state of the journal in place of the present one."""
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as elsewhere:
        earlier = Path(elsewhere, folder.name, JOURNAL)
        earlier.parent.mkdir()
        earlier.write_bytes(b"".join(lines[: rng.randrange(1, len(lines))]))
        finish(earlier)
        shutil.copyfile(earlier.with_name(RECORD), folder / RECORD)


def replace_by_foreign(name: str) -> Damage:
    """Put a file of another run in place of this run's."""

    def replace(folder: Path, rng: random.Random) -> None:
        shutil.copyfile(another(folder, rng) / name, folder / name)

    return replace


def replace_by_text(name: str) -> Damage:
    """Put something in place of a derived file that has no seal."""
    texts = ("{}", "[]", "", '{"status": "running"}')

    def replace(folder: Path, rng: random.Random) -> None:
        (folder / name).write_text(rng.choice(texts))

    return replace


def in_sweep(folder: Path, rng: random.Random) -> Path:
    """The file of a Record that a sweep has of its runs, or of itself, drawn at random."""
    return rng.choice(sorted((folder / RECORDS).glob("*.json")))


def swap_in_sweep(folder: Path, rng: random.Random) -> None:
    """Exchange two of the Records that a sweep has."""
    one, other = rng.sample(sorted((folder / RECORDS).glob("*.json")), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def replace_in_sweep(folder: Path, rng: random.Random) -> None:
    """Put the Record that another sweep has of its runs in place of one of this sweep's."""
    others = [path for path in folder.parent.glob(f"*/{RECORDS}") if path.parent != folder]
    shutil.copyfile(in_sweep(rng.choice(sorted(others)).parent, rng), in_sweep(folder, rng))


def make_pipe(name: str) -> Damage:
    """Put a FIFO, which blocks who opens it, in place of a file."""

    def replace(folder: Path, rng: random.Random) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return replace


def link_to_device(name: str) -> Damage:
    """Put a link to what never ends in place of a file."""

    def replace(folder: Path, rng: random.Random) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")

    return replace


def append_other_types(folder: Path, rng: random.Random) -> None:
    """Append a line with a right checksum whose values have other types."""
    with Journal.reopen(folder) as journal:
        values: list[dict[str, Any]] = [{"phases": "x"}, {"steps": 7}, {"devices": [[]]}, {"summary": "a"}]
        journal.set(rng.choice(values))


def leave_files(folder: Path, rng: random.Random) -> None:
    """What processes leave that were killed while they wrote."""
    for name in (f".{RECORD}.{secrets.token_hex(8)}.tmp", f".{LEDGER}.{secrets.token_hex(8)}.tmp", RESERVE):
        (folder / name).write_bytes(b"{" * rng.randrange(1, 1000))
        os.utime(folder / name, (1.6e9, 1.6e9))


UNDAMAGING = {"leftovers of killed writers", "run renamed in MLflow"}
"""They take nothing from the run, and ``check`` finds nothing wrong."""

SWEEPS_RECORDS: dict[str, tuple[int, Damage]] = {
    "bit flipped in a sweep's Record": (6, lambda folder, rng: flip(in_sweep(folder, rng), rng)),
    "Records exchanged in a sweep": (6, swap_in_sweep),
    "Record of another sweep in a sweep": (6, replace_in_sweep),
    "parent of a sweep deleted in MLflow": (6, delete_mlflow_run),
    "Record without a seal in a sweep": (
        6,
        lambda folder, rng: replace_by_text(str(in_sweep(folder, rng).relative_to(folder)))(folder, rng),
    ),
}
"""Damage that only the folder of a sweep can have."""

DERIVED: dict[str, tuple[int, Damage]] = {
    f"bit flipped in {RECORD}": (20, lambda folder, rng: flip(folder / RECORD, rng)),
    f"bit flipped in {LEDGER}": (20, lambda folder, rng: flip(folder / LEDGER, rng)),
    f"{RECORD} of an earlier state": (11, replace_by_older),
    f"{RECORD} of another run": (11, replace_by_foreign(RECORD)),
    f"{LEDGER} of another run": (11, replace_by_foreign(LEDGER)),
    f"{RECORD} without a seal": (11, replace_by_text(RECORD)),
    f"{LEDGER} without a seal": (11, replace_by_text(LEDGER)),
    "run deleted in MLflow": (15, delete_mlflow_run),
    "run renamed in MLflow": (8, rename_mlflow_run),
    "files of a run deleted in MLflow": (8, delete_artifacts),
    f"{RECORD} is a FIFO": (8, make_pipe(RECORD)),
    f"{LEDGER} is a FIFO": (8, make_pipe(LEDGER)),
    f"{RECORD} is a link to a device": (8, link_to_device(RECORD)),
    "leftovers of killed writers": (6, leave_files),
    **SWEEPS_RECORDS,
}
DATABASE: dict[str, tuple[int, Damage]] = {"database deleted": (3, delete_database)}
JOURNALS: dict[str, tuple[int, Damage]] = {
    "line dropped from the journal": (14, lambda folder, rng: edit(folder / JOURNAL, rng, 0)),
    "line repeated in the journal": (14, lambda folder, rng: edit(folder / JOURNAL, rng, 2)),
    "lines cut from the journal's end": (14, lambda folder, rng: cut(folder / JOURNAL, rng)),
    "journal is a FIFO": (8, make_pipe(JOURNAL)),
    "journal is a link to a device": (8, link_to_device(JOURNAL)),
    "values of other types with right checksums": (8, append_other_types),
    "bit flipped in the journal": (14, lambda folder, rng: flip(folder / JOURNAL, rng)),
}
"""{fault: (how many, what is done to the folder of a run)}."""
