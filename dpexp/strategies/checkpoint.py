"""Activation checkpointing: backward computes the activations of a block again, which are not kept.

    kept for backward, without:  block 0, all of it    block 1, all of it    loss
    with --checkpoint:           block 0, its inputs   block 1, its inputs   loss

A block computes the same twice: PyTorch restores the random numbers, and not the buffers that it changes.

Source: Chen et al., "Training deep nets with sublinear memory cost", 2016.
"""

from collections.abc import Sequence

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper


def checkpoint_blocks(model: nn.Module, names: Sequence[str]) -> None:
    """Put PyTorch's wrapper around each named block, in place, wherever the model has it."""
    blocks = map(model.get_submodule, names)
    wrapped = {block: checkpoint_wrapper(block, CheckpointImpl.NO_REENTRANT) for block in blocks}
    for parent in [*model.modules()]:
        for key, child in parent._modules.items():
            if child in wrapped:
                parent._modules[key] = wrapped[child]
