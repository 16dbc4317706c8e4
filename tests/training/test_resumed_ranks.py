"""A run in ranks resumes to the bit, whatever each rank has of parameters, buffers and optimizer state."""

import io
from itertools import islice
from typing import Any

import pytest
import torch
from command_lines import ROOT
from in_ranks import in_ranks
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.distributed.process_group import ProcessGroup
from dpexp.distributed.torch_process_group import TorchProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.timing import Timer

LAYOUTS = ROOT / "experiments" / "planted_bugs" / "layouts"
MESHES = {
    "right_fsdp2": "dp=2",
    "right_shards": "dp=2",
    "right_dtensor": "tp=2",
    "right_pp": "pp=2",
}
"""Layouts of a rank: FSDP2, shards by hand, tensor parallelism, a pipeline."""


class Normed(nn.Module):
    """Buffers that a step changes, and that only one rank of a pipeline has."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm1 = nn.Linear(12, 12), nn.BatchNorm1d(12)
        self.norm2, self.fc2 = nn.BatchNorm1d(12), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc2(self.norm2(self.norm1(self.fc1(x))))

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 12, generator=generator), torch.randn(samples, 12, generator=generator)


def config(case: str) -> RunConfig:
    model = f"{__file__}:Normed" if case == "right_pp" else f"{LAYOUTS.parent / 'models.py'}:Net"
    layout = {"layout": f"{LAYOUTS / case}.py:parallelize", "mesh": MESHES[case]}
    return RunConfig.from_dict({"strategy": "custom", "model": model, "optimizer": "adam"} | layout)


def resumed(group: ProcessGroup, case: str) -> dict[str, Any]:
    """What differs between a run that is not disturbed and one that is resumed, after the same steps."""
    of, trainers = config(case), []
    options = of.options.rank_options
    assert options is not None
    of_mesh = TorchProcessGroup(options.mesh_of(group.size))
    for _ in range(2):
        prepared = prepare(of, group=of_mesh, one_batch=False)
        placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
        trainers.append(prepared.trainer(placed))
    undisturbed, again = trainers
    batches = list(islice(prepared.endless_batches(), 6))
    undisturbed.take_steps(batches[:3])
    file = io.BytesIO()
    torch.save(group.broadcast(0, undisturbed.state_dict()), file)  # the first rank writes the snapshot
    again.take_steps(batches[:2])  # before a snapshot is loaded
    again.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for trainer in trainers:
        trainer.take_steps(batches[3:])
    expected, found = undisturbed.state_dict(), again.state_dict()
    return {
        "names": len(found["parameters"]) + len(found["buffers"]),
        "differ": [
            name
            for kind in ("parameters", "buffers")
            for name, tensor in expected[kind].items()
            if not torch.equal(tensor, found[kind][name])
        ]
        + (["optimizer"] if str(expected["optimizer"]) != str(found["optimizer"]) else []),
    }


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    return in_ranks(2, __file__, *(f"resumed:{case}" for case in MESHES))


@pytest.mark.parametrize("case", MESHES)
def test_a_resumed_run_in_ranks_takes_the_same_steps_to_the_bit(
    case: str, found: dict[str, list[Any]]
) -> None:
    for of_rank in found[f"resumed:{case}"]:
        assert of_rank["names"] > 2
        assert of_rank["differ"] == []
