"""Whole, delivered runs and sweeps in any number: a few of them ran, the others are their copies."""

from __future__ import annotations

import json
from pathlib import Path

from scene import Scene

from dpexp.record.journal.fold import finish
from dpexp.record.journal.journal import JOURNAL, SWEEP_STRATEGY, encode_line
from dpexp.record.record import new_run_id
from dpexp.record.runs.origin import sign
from dpexp.record.runs.sweep_records import OF_SWEEP, write_record

_COMMON = ("--no-check", "--quiet", "--threads", "1", "--track-timeout", "300")
RAN = (
    ("run.py", "single", "--steps", "1000", *_COMMON),
    ("run.py", "hybrid", "--virtual", "2", "--steps", "200", *_COMMON),
)
SWEPT = ("single", "--devices", "cpu", "--steps", "100", "--repeat", "1", "--no-check", "--threads", "1")


def copy_run(folder: Path, *, parent: str = "") -> Path:
    """The folder of a copy of a run beside it, with an id of its own; ``sync`` delivers it."""
    run = new_run_id()
    entries = [json.loads(line) for line in (folder / JOURNAL).read_bytes().splitlines()]
    first = entries[0]["set"]
    first |= {"run_id": run, "origin": sign(folder.parents[1], run, first["config"])}
    first |= {"parent": parent} if parent else {}
    new = folder.with_name(run)
    new.mkdir(mode=0o700)
    lines = [encode_line({key: value for key, value in entry.items() if key != "crc"}) for entry in entries]
    (new / JOURNAL).write_bytes(b"".join(lines))
    finish(new / JOURNAL)
    return new


def copy_sweep(folder: Path) -> None:
    """A copy of a sweep and of its runs."""
    new = copy_run(folder)
    for path in sorted(folder.parent.glob(f"*/{JOURNAL}")):
        entry = json.loads(path.read_bytes().splitlines()[0])["set"]
        if entry.get("parent") == folder.name and path.parent != folder:
            write_record(new, entry["name"], copy_run(path.parent, parent=new.name) / JOURNAL)
    write_record(new, OF_SWEEP, new / JOURNAL)


def template(scene: Scene) -> Path:
    """The folder of a run that ran in this home, to be copied."""
    marked = scene.home / "template"
    if not marked.exists():
        assert scene.run(*RAN[0], "--run-name", "template") == 0
        marked.write_text(next(row["run_id"] for row in scene.output("list") if row["name"] == "template"))
    return scene.home / "runs" / marked.read_text()


def prepare(scene: Scene, runs: int, sweeps: int) -> None:
    """Fill a home with so many delivered runs, and sweeps of two runs; once."""
    if (scene.home / "prepared").exists():
        return
    assert [scene.run(*words) for words in RAN] == [0] * len(RAN)
    assert scene.run("sweep.py", *SWEPT, "--seed", "0,1") == 0
    assert scene.run("sweep.py", *SWEPT, "--seed", "2,3") == 0
    rows = scene.output("list")
    folders = {row["run_id"]: scene.home / "runs" / row["run_id"] for row in rows}
    parents = [row["run_id"] for row in rows if row["strategy"] == SWEEP_STRATEGY]
    single = [row["run_id"] for row in rows if not row["name"].startswith(("sweep", "single-seed"))]
    for n in range(runs - len(rows)):
        copy_run(folders[single[n % len(single)]])
    for n in range(sweeps - len(parents)):
        copy_sweep(folders[parents[n % len(parents)]])
    assert scene.run("runs.py", "sync") == 0
    assert not scene.check()
    (scene.home / "prepared").touch()
