"""Forged Records, whose checksums and seals are right, are refused by the commands that check Records."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_lines import ROOT, script

import dpexp
from dpexp.record.figures.summary import summarize
from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import JOURNAL, RECORD, Journal
from dpexp.record.journal.seal import checksum, seal
from dpexp.record.packing import pack
from dpexp.record.record import Record
from dpexp.study.experiment.experiment import load_experiment
from dpexp.study.experiment.readme import ExperimentReadme
from dpexp.study.experiment.records import checksums, read_record
from dpexp.study.reproduce.reproduction import compare_records


def _tolerance(record: Record) -> None:
    record.verification |= {"gradient_error": 0.3, "tolerance": 1.0}


def _explained(record: Record) -> None:
    """With a note that derives the tolerance from a measurement."""
    measured = "a single device differs from itself by 1.0e-06, and the limit is 1.0e-05"
    record.verification |= {"gradient_error": 1e-6, "tolerance": 1e-5, "note": measured, "worst": None}


def _rounding(record: Record) -> None:
    record.verification |= {"gradient_error": 0.3, "rounding": {"passed": True}}


def _flops(record: Record) -> None:
    record.work["flops"] = {name: 10 * count for name, count in record.work["flops"].items()}


def _parameter(record: Record) -> None:
    """A smaller parameter, in the device map alone."""
    row = record.device_map[0]
    row |= {"bytes": row["bytes"] // 2, "shape": [row["shape"][0], row["shape"][1] // 2]}


def _traffic(record: Record) -> None:
    """Half the bytes, as if all were of a shorter type."""
    for row in (row for row in record.shapes if "bytes" in row):
        row["bytes"] = {name: count // 2 for name, count in row["bytes"].items()}


def _of_one_batch(record: Record) -> None:
    row = next(row for row in record.shapes if "bytes" in row)
    row["bytes"] = {name: count // 2 for name, count in row["bytes"].items()}


def _replica(record: Record) -> None:
    row = next(row for row in record.shapes if row["scope"] == "replica")
    row["inputs"] = [[shape[0] + 1, *shape[1:]] for shape in row["inputs"]]


def _faster(record: Record) -> None:
    record.steps["time_ms"] = [1e-5 for _ in record.steps["time_ms"]]


def _memory(record: Record) -> None:
    record.memory_use = [
        {key: each // 2 if key == "parameters" else each for key, each in row.items()}
        for row in record.memory_use
    ]


def _smaller_batch(record: Record) -> None:
    record.steps["samples"] = record.steps["samples"][::-1]


FORGED: dict[str, tuple[Callable[[Record], object], str]] = {
    "loss": (lambda record: record.verification.update(loss_error=0.3), "verification.loss_error is 0.3"),
    "parameters": (
        lambda record: record.verification.update(parameter_error=0.3),
        "verification.parameter_error is 0.3",
    ),
    "optimizer": (
        lambda record: record.verification.update(optimizer_error=0.3),
        "verification.optimizer_error is 0.3",
    ),
    "buffers": (
        lambda record: record.verification.update(buffer_error=0.3),
        "verification.buffer_error is 0.3",
    ),
    "tolerance": (_tolerance, "verification.tolerance is 1.0"),
    "rounding": (_rounding, "verification.gradient_error is 0.3"),
    "parameter": (_parameter, "memory_use.parameters"),
    "traffic": (_of_one_batch, "shapes of the model: no types of its tensors give the bytes"),
    "replica": (_replica, "are not the parts of"),
    "faster": (_faster, "steps.time_ms is at most"),
    "memory": (_memory, "memory_use.parameters"),
    "batches": (_smaller_batch, "steps.samples has"),
}
"""{run: (how it is forged, what is said of it)} of what contradicts the rest of a Record."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A real run, with its phases and profile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPEXP_HOME", str(tmp_path_factory.mktemp("home")))
        found = dpexp.run("whole", virtual=2, model="mlp", steps=16, track=False, quiet=True)
    return Record.from_dict(json.loads(json.dumps(found.to_dict())))


def forged(honest: Record, name: str) -> Record:
    record = copy.deepcopy(honest)
    record.run_id = name
    FORGED[name][0](record)
    summarize(record)
    return record


def written(record: Record, home: Path) -> Path:
    """The folder of a run whose journal holds this Record, each line with its checksum."""
    with Journal(home / "runs", record.run_id) as journal:
        facts = record.to_dict()
        rows = {key: pack(facts[key]) for key in ("shapes", "device_map")}
        journal.set({key: value for key, value in facts.items() if key not in ("damage", *rows)} | rows)
    finish(journal.path)
    return journal.folder


def test_check_names_what_is_forged_in_a_journal_with_right_checksums(
    honest: Record, dpexp_home: Path
) -> None:
    written(honest, dpexp_home)
    for name in FORGED:
        written(forged(honest, name), dpexp_home)
    done = script("runs.py", "check")
    assert done.returncode == 1, done.stderr
    found = [line.partition("  contradiction: ")[::2] for line in done.stdout.splitlines()[:-1]]
    assert {run for run, _ in found} == set(FORGED)
    for name, (_, said) in FORGED.items():
        assert any(said in text for run, text in found if run == name), (name, done.stdout)


def test_reproduce_finds_what_is_forged(honest: Record) -> None:
    assert compare_records(honest, honest).is_reproduced
    for name, (_, said) in FORGED.items():
        result = compare_records(forged(honest, name), honest)
        (check,) = [check for check in result.checks if check.what == "the record itself"]
        assert not result.is_reproduced
        assert said in check.details, name


@pytest.mark.parametrize(
    ("forge", "what"),
    [
        (_flops, "operations of a step"),
        (_traffic, "shapes"),
        (lambda record: record.memory_use[0].update(gradients=1, activations=1), "memory of a step"),
        (lambda record: record.verification.update(steps=300), "limit of errors"),
        (_explained, "limit of errors"),
        (lambda record: record.verification["last_step"].update(tolerance=9e-4), "limit of errors"),
    ],
)
def test_reproduce_finds_what_no_other_key_gives(
    honest: Record, forge: Callable[[Record], object], what: str
) -> None:
    record = copy.deepcopy(honest)
    forge(record)
    summarize(record)
    result = compare_records(record, honest)
    assert [check.what for check in result.checks if check.is_equal is False] == [what]
    assert not result.is_reproduced


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (lambda record: record.summary.update(samples_per_s=1e9), "summary.samples_per_s is 1000000000.0"),
        (
            lambda record: record.summary["phases_ms"].update(backward=1e-6),
            "summary.phases_ms.backward is 1e-06",
        ),
        (lambda record: record.summary.update(phase_coverage=0.999), "summary.phase_coverage is 0.999"),
        (lambda record: record.steps["loss"].__setitem__(-1, 0.001), "steps differ from the journal"),
        (lambda record: record.verification.update(loss_error=0.3), "verification differ from the journal"),
    ],
)
def test_a_record_that_says_something_else_than_its_journal_is_found_whatever_its_seal(
    honest: Record, dpexp_home: Path, forge: Callable[[Record], object], said: str
) -> None:
    folder = written(honest, dpexp_home)
    record = load(folder)
    forge(record)
    (folder / RECORD).write_bytes(seal(record.to_json(), checksum(folder / JOURNAL)))
    done = script("runs.py", "check", "--repair")
    assert said in done.stdout
    assert done.stdout.count("; repaired") == 1
    assert load(folder).to_dict() == honest.to_dict()


def test_report_finds_experiments_whose_records_are_all_forged_alike(tmp_path: Path) -> None:
    folder = tmp_path / "whole_vs_block"
    shutil.copytree(ROOT / "experiments" / "whole_vs_block", folder)
    records = folder / "records" / "cpu"
    forgeries = {"single": _flops, "whole": _traffic, "block2": FORGED["loss"][0], "all-three": _parameter}
    for cell, forge in forgeries.items():
        for path in records.glob(f"{cell}.r*.json"):
            record = read_record(path)
            forge(record)
            summarize(record)
            path.write_text(record.to_json())
    (records / "SHA256SUMS").write_text(checksums(records))
    ExperimentReadme(load_experiment(folder)).write()
    done = script("report.py", "--check", folder)
    assert done.returncode == 1
    for cell, said in {
        "single.r1": "work.flops is not what its config predicts",
        "whole.r1": "shapes: the bytes of a call is not what its config predicts",
        "block2.r5": "verification.loss_error is 0.3, not at most 1e-12, but it passed",
        "all-three.r1": "device_map is not what its config predicts",
    }.items():
        assert f"{cell}.json: {said}" in done.stderr, done.stderr
