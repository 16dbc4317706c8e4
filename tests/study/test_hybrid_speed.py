"""experiments/hybrid_speed: all ways do the same work."""

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from command_lines import ROOT

from dpexp import devices

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
