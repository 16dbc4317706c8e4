"""Races: a result is used before it is there, which today's timing may not show."""

import torch
from catalogue import run
from pieces import by_bucket
from torch import distributed


@run("ranks")
def last_without_wait(model):
    """The all-reduce of `first.weight`, the last of the backward, is not waited for."""

    def change(parameter):
        parameter.grad /= distributed.get_world_size()
        work = distributed.all_reduce(parameter.grad, async_op=True)
        if parameter is not model.first.weight:
            work.wait()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(change)
    return model


@run("ranks")
def hook_without_wait(model):
    """A communication hook of DDP returns the bucket before its all-reduce has ended."""

    def change(gradient):
        gradient = gradient / 2
        distributed.all_reduce(gradient, async_op=True)
        return gradient

    return by_bucket(model, change)


@run("ranks")
def reused_buffer(model):
    """One buffer is filled again for the next gradient while the all-reduce of the last one is under way."""
    buffer, works = torch.zeros(4096, dtype=model.first.weight.dtype), []

    def change(parameter):
        flat = buffer[: parameter.numel()]
        flat.copy_(parameter.grad.flatten() / 2)
        works.append((distributed.all_reduce(flat, async_op=True), parameter, flat))
        if len(works) == len(list(model.parameters())):
            for work, each, part in works:
                work.wait()
                each.grad.copy_(part.view_as(each.grad))
            works.clear()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(change)
    return model
