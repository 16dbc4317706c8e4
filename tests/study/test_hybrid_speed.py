"""experiments/hybrid_speed: all ways do the same work, and one that is not installed is left out."""

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from command_lines import ROOT

from dpexp import devices
from dpexp.record.record import Record

WAYS = ROOT / "experiments" / "hybrid_speed" / "ways.py"


@pytest.fixture(scope="module")
def program() -> Iterator[ModuleType]:
    """The program as a module; it sets the number of threads."""
    spec = importlib.util.spec_from_file_location("hybrid_speed_ways", WAYS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    before = torch.get_num_threads()
    spec.loader.exec_module(module)
    yield module
    torch.set_num_threads(before)
    del sys.modules[spec.name]


def test_all_ways_compute_the_same_losses_and_weights(program: ModuleType) -> None:
    work = program.work_of(2000, 8)
    ways = {name: way for name, make in program.WAYS.items() if (way := make(work)) is not None}
    left_out = {"accelerate", *(["emulated"] if devices.accelerators() else [])}
    assert left_out | set(ways) == set(program.WAYS)
    found = {name: program.first_steps(way, work) for name, way in ways.items()}
    weights = found["dense"].weights
    for first in found.values():
        assert first.losses == pytest.approx(found["dense"].losses, rel=1e-6)
        assert program.difference(first.weights, weights) < 1e-6
    ids = torch.cat([batch.inputs[0] for batch in work.batches[: program.COMPARED]]).unique()
    table, *others = program.parameters(program.Model(2000, 8))
    assert program.difference(weights, [table[ids], *others]) > 1e-5, "nothing was trained"


def test_each_way_has_a_sample_a_turn_and_ratios_are_those_of_one_turn(program: ModuleType) -> None:
    found = program.figures(1000, 0, block_s=0.0)
    (difference,) = found.pop("difference")
    assert difference < 1e-6
    assert {len(samples) for samples in found.values()} == {program.TURNS}
    one, other = found["serial_ms"], found["sparse_ms"]
    ratios = [a / b for a, b in zip(one, other, strict=True)]
    assert found["serial_over_sparse"] == pytest.approx(ratios, rel=1e-3)


def test_a_way_whose_package_is_missing_is_named_and_left_out(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    found = program.figures(1000, 0, block_s=0.0)
    assert "accelerate is not installed" in capsys.readouterr().err
    assert "serial_ms" in found
    assert not [name for name in found if "accelerate" in name]


def test_the_program_prints_a_record_of_what_it_measured(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics = {"sparse_ms": [1.0, 3.0], "serial_over_sparse": [1.0, 1.1]}
    monkeypatch.setattr(program, "figures", lambda rows, hidden: metrics)
    program.main(1000, "linear")
    record = Record.from_json(capfd.readouterr().out)
    assert (record.status, record.name) == ("finished", "linear-1000")
    used = devices.accelerators()
    assert record.execution == ("real" if used else "virtual")
    assert record.devices["used"] == [str(used[0]) if used else "cpu"]
    assert (record.summary["step_ms"]["median"], record.metrics) == (2.0, metrics)
