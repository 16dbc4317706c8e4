"""Forgeries: one number of a real Record is altered, wherever it stands; what follows from others is found.

Every number of a Record has an entry below, by its key: a new key has none, and is a failure until it has.
"""

from __future__ import annotations

import copy
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import launching
import pytest
from command_lines import ROOT

import dpexp
from dpexp.record.consistency.contradictions import contradictions
from dpexp.record.record import JournalError, Record
from dpexp.study.experiment.records import read_record
from dpexp.study.reproduce.reproduction import compare_records

FOLLOWS = {
    "schema": "schema is",
    "config.*": "config_digest",
    "data.samples": "data.samples",
    "devices.ranks.#.rank": "devices.ranks",
    "device_map.#.bytes": "device_map",
    "device_map.#.shape.#": "device_map",
    "device_map.#.local_shape.#": "device_map",
    "device_map.#.rank": "device_map",
    "shapes.#.bytes.*": "shapes",
    "shapes.#.moved.*": "shapes",
    "shapes.#.moved_back.*": "shapes",
    "steps.samples.#": "steps.samples",
    "phases.*": "phases",
    "memory_use.#.parameters": "memory_use.parameters",
    "memory_use.#.buffers": "memory_use.buffers",
    "memory_use.#.optimizer": "memory_use.optimizer",
    "work.rows": "work.rows",
    "work.flops.*": "summary.flops",
    "work.memory.row_bytes": "work.memory.row_bytes",
    "work.memory.bytes": "summary.stages.lookup_share",
    "work.peak.threads": "work.peak.threads",
    "work.memory.bytes_per_s.max": "summary.stages.lookup_share",
    "work.peak.flops_per_s.max": "summary.peak_share",
    "verification.*worst.error": "worst",
    "summary.step_ms.*": "summary.step_ms",
    "summary.samples_per_s": "summary.samples_per_s",
    "summary.wall_samples_per_s": "summary.wall_samples_per_s",
    "summary.phases_ms.*": "summary.phases_ms",
    "summary.phase_coverage": "summary.phase_coverage",
    "summary.stages.*": "summary.stages",
    "summary.memory_bytes.*": "summary.memory_bytes",
    "summary.flops.*": "summary.flops",
    "summary.flops_per_s": "summary.flops_per_s",
    "summary.peak_share": "summary.peak_share",
}
"""{key: what the contradiction names} of what follows from other keys of the Record."""
LIMITED = {
    "verification.[!r]*_error": "verification",  # but those of rounding
    "verification.tolerance": "verification.tolerance",
    "verification.*_step*.tolerance": "tolerance",
    "verification.*worst.limit": "worst.limit",
    "verification.*worst.step": "worst.step",
    "verification.rounding.output_error": "verification.rounding",
    "verification.rounding.gradient_error": "verification.rounding",
    "work.peak.flops_per_s.m[ei]*": "work.peak",
    "work.peak.flops_per_s.iqr": "work.peak",
    "work.peak.devices": "work.peak.devices",
    "work.memory.bytes_per_s.m[ei]*": "work.memory",
    "work.memory.bytes_per_s.iqr": "work.memory",
}
"""{key: what the contradiction names} of what may be other than it is, within limits."""
RUN_AGAIN = (
    "shapes.#.batch",
    "shapes.#.replica",
    "shapes.#.inputs.#.#",
    "shapes.#.outputs.#.#",
    "steps.loss.#",
    "memory_use.#.gradients",
    "memory_use.#.activations",
    "memory_use.#.rank",
    "summary.collectives.#.*",
)
"""What the config decides, and only the run shows: ``reproduce`` finds it."""
MEASURED = (
    "steps.time_ms.#",
    "steps.wall_ms.#",
    "timeline.*",
    "memory.*",
    "memory_use.#.peak",
    "work.*.flops_per_s.n",
    "work.*.bytes_per_s.n",
    "work.peak.size",
    "verification.steps",
    "verification.training_steps",
    "verification.*_step*.steps",
    "verification.rounding.single_*",
    "metrics.*",
    "environment.*",
)
"""What no other key gives: raw samples, and the machine. docs/checks.md says what that means."""

CHANGES = (
    lambda x: 2 * x or 1,
    lambda x: x + 1 if isinstance(x, int) else 1.01 * x + 1,
    lambda x: x // 2 or x + 7 if isinstance(x, int) else x / 2 or 0.5,
)
FAR = 1e6
Path_ = tuple[str | int, ...]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Real Records of several strategies, on one and on several ranks, of this version and committed ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPEXP_HOME", str(tmp_path_factory.mktemp("home")))
        words = ["fsdp", "--virtual", "2", "--steps", "6", "--optimizer", "adam", "--phase-steps", "4"]
        found = {
            "fsdp": launching.record(launching.run(*words, "--json", "--quiet")),
            "whole": _run("whole", virtual=2, model="mlp"),
            "rounding": _run("single", dtype="bfloat16"),
        }
    for name in ("hybrid_table_size/records/cpu/sparse-1000.r1", "whole_vs_block/records/cpu/block2.r1"):
        found[name] = read_record(ROOT / "experiments" / f"{name}.json").to_dict()
    return {name: Record.from_dict(json.loads(json.dumps(data))) for name, data in found.items()}


def _run(strategy: str, **options: Any) -> dict[str, Any]:
    return dpexp.run(strategy, steps=6, phase_steps=4, track=False, quiet=True, **options).to_dict()


def numbers(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The path of every number in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from numbers(each, (*path, key))
    if type(value) in (int, float):
        yield path


def key_of(path: Path_) -> str:
    return ".".join("#" if isinstance(part, int) else part for part in path)


def altered(record: Record, path: Path_, change: Any) -> Record:
    """The Record with another number there. Raises JournalError where no version has such a Record."""
    data = copy.deepcopy(record.to_dict())
    parent: Any = data
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = change(parent[path[-1]])
    return Record.from_dict(data)


def texts(record: Record, path: Path_, change: Any) -> str:
    try:
        return "; ".join(contradictions(altered(record, path, change)))
    except JournalError as error:
        return str(error)


def chosen(record: Record, keys: Any) -> Iterator[tuple[str, Path_]]:
    """Some numbers of each key that one of the patterns fits, with the pattern."""
    found = defaultdict(list)
    for path in numbers(record.to_dict()):
        for pattern in (pattern for pattern in keys if fnmatchcase(key_of(path), pattern)):
            found[pattern, key_of(path)].append(path)
    for (pattern, _), paths in found.items():
        for path in random.Random(7).sample(paths, min(2, len(paths))):
            yield pattern, path


def test_every_number_of_a_record_has_an_entry(honest: dict[str, Record]) -> None:
    known = (*FOLLOWS, *LIMITED, *RUN_AGAIN, *MEASURED)
    keys = {key_of(path) for record in honest.values() for path in numbers(record.to_dict())}
    assert len(keys) > 100
    assert {key for key in keys if not any(fnmatchcase(key, pattern) for pattern in known)} == set()
    unused = {pattern for pattern in known if not any(fnmatchcase(key, pattern) for key in keys)}
    assert unused <= {"metrics.*"}  # which not every run has


def test_no_honest_record_contradicts_itself(honest: dict[str, Record]) -> None:
    assert {name: found for name, record in honest.items() if (found := contradictions(record))} == {}


def test_a_number_that_follows_from_others_is_named_when_it_is_altered(honest: dict[str, Record]) -> None:
    tried = set()
    for name, record in honest.items():
        for pattern, path in chosen(record, FOLLOWS):
            tried.add(pattern)
            for change in CHANGES:
                found = texts(record, path, change)
                assert FOLLOWS[pattern] in found, (name, path, found)
    assert tried == set(FOLLOWS)


def test_a_number_beyond_its_limit_is_named(honest: dict[str, Record]) -> None:
    tried = set()
    for name, record in honest.items():
        for pattern, path in chosen(record, LIMITED):
            tried.add(pattern)
            found = texts(record, path, lambda x: type(x)(FAR * x + FAR))
            assert LIMITED[pattern] in found, (name, path, found)
    assert tried >= set(LIMITED)


def test_a_number_that_the_config_decides_is_not_reproduced(honest: dict[str, Record]) -> None:
    tried = set()
    for name, record in honest.items():
        assert compare_records(record, record).is_reproduced, name
        for pattern, path in chosen(record, RUN_AGAIN):
            tried.add(pattern)
            forged = altered(record, path, CHANGES[1])
            assert not compare_records(forged, record).is_reproduced, (name, path)
    assert tried == set(RUN_AGAIN)
