"""Gradient sync: how gradients come together, after and during backward."""

from contextlib import AbstractContextManager, nullcontext

import torch

from dpexp.data.batch import Batch


class GradientSync:
    """How gradients come together: here those of one process, which autograd adds up."""

    def computing(self, batch: Batch) -> AbstractContextManager[object]:
        """The context of everything of a step after its forward: loss, backward and optimizer."""
        return nullcontext()

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        """Give every local parameter the gradient of the mean loss over the rows of the global batch.

        It may communicate: every rank must call it.
        """
        loss.backward()  # type: ignore[no-untyped-call]
