"""Evaluation: the outputs of trained weights in eval mode without gradients, as an evaluation has them."""

from collections.abc import Mapping, Sequence

import torch

from dpexp.data.batch import Batch
from dpexp.training.trainer import Trainer
from dpexp.verification.limits.parts import parts_of
from dpexp.verification.steps.recorder import Recorder, Step
from dpexp.verification.steps.side_by_side import Failure, SideBySide
from dpexp.verification.steps.step_parts import last_bits

MODE = "in eval mode, without gradients"


def evaluations(batches: Sequence[Batch], steps: int) -> Mapping[int, str]:
    """What is special about the numbers that follow those of the steps: each is an evaluation."""
    return dict.fromkeys(range(steps + 1, steps + 1 + len(_evaluated(batches))), MODE)


def evaluate(sides: SideBySide, batches: Sequence[Batch]) -> Failure | None:
    """Compare evaluations of both sides on the first batch and the one with the fewest rows.

    Every rank computes all rows, and must call this. What draws random numbers in eval mode is not compared.
    """
    steps = sides.steps
    for batch in _evaluated(batches):
        sides.steps += 1
        sides.rows[sides.steps] = batch.rows
        state = torch.get_rng_state()
        expected = _outputs(sides.reference, batch)
        if not torch.equal(torch.get_rng_state(), state):
            break
        found = _outputs(sides.layout, batch)
        if sides.group.dp_rank:
            found.calls = {}  # those of the first ranks are of all rows
        for name in [name for name, output in expected.outputs.items() if not output.dim()]:
            del expected.outputs[name]  # replicas have one each, as in training
            found.outputs.pop(name, None)
        kinds = {"outputs": parts_of(found.outputs, expected.outputs)}
        if sides.measures:
            sides.last_bits |= last_bits(kinds, expected, sides.steps)
        failed = sides.errors.failed(sides.steps, kinds)
        if failed:
            return Failure(failed, batch, found, expected)
    sides.steps = steps
    return None


def _evaluated(batches: Sequence[Batch]) -> list[Batch]:
    return [batches[0], min(batches, key=lambda batch: batch.rows)]


def _outputs(trainer: Trainer, batch: Batch) -> Step:
    recorder = Recorder(trainer, True, lambda: None)
    with recorder.hooks():
        recorder.forward_ended(trainer.evaluate(batch))
    return recorder.step
