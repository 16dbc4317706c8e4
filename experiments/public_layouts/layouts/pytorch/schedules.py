"""Layouts whose module takes forwards and backwards in an order of its own."""

import torch
from torch import nn

from dpexp.strategies.placed import UNOBSERVED, Placed


class Scheduled(nn.Module):
    """A module whose ``schedule(*inputs)`` returns the loss, and adds its gradients to those of the parameters."""

    def forward(self, *inputs):
        kept = [(parameter, parameter.grad) for parameter in self.parameters()]
        with torch.enable_grad():
            loss = self.schedule(*inputs)
        if not torch.is_grad_enabled():
            for parameter, gradient in kept:
                parameter.grad = gradient
        return loss


class WholeStep(Placed):
    """A step in which the module's forward is the backward, too."""

    def step(self, batch, loss, update, autocast=None, observer=UNOBSERVED):
        with torch.set_grad_enabled(update is not None):
            total = self.module(*batch.inputs)
        observer.forward_ended(total)
        observer.loss_ended(total)
        if update is not None:
            observer.backward_ended()
            update()
        return total
