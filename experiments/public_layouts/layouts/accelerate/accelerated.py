"""Accelerate's own preparation of a model, in the process group that is there."""

from accelerate import Accelerator


def prepared(model, **options):
    """What ``Accelerator.prepare`` makes of the model on CPUs."""
    return Accelerator(cpu=True, **options).prepare(model)
