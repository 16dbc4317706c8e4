"""Races: a result is used before it is there, which today's timing may not show."""

import torch
from catalogue import bug
from over import Plain, by_bucket, by_parameter
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def reduced(parameter, wait):
    """Average a gradient over the ranks, in place, without waiting for it."""
    parameter.grad /= distributed.get_world_size()
    work = distributed.all_reduce(parameter.grad, async_op=True)
    if wait:
        work.wait()


def reducing(model, is_waited_for):
    for name, parameter in model.named_parameters():
        wait = is_waited_for(name)
        parameter.register_post_accumulate_grad_hook(lambda each, wait=wait: reduced(each, wait))
    return Plain(model)


@bug("by_hand")
def no_wait(model):
    """No all-reduce of a gradient is waited for."""
    return reducing(model, lambda name: False)


@bug("by_hand")
def one_without_wait(model):
    """The all-reduce of `third.bias`, the first of the backward, is not waited for."""
    return reducing(model, lambda name: name != "third.bias")


@bug("by_hand")
def last_without_wait(model):
    """The all-reduce of `first.weight`, the last of the backward, is not waited for."""
    return reducing(model, lambda name: name != "first.weight")


@bug("by_hand")
def one_for_all(model):
    """Only the last all-reduce of the backward is waited for."""
    return reducing(model, lambda name: name.startswith("first."))


@bug("by_hand")
def large_without_wait(model):
    """A large buffer of all gradients is all-reduced, and read at once."""
    parameters = list(model.parameters())

    def last(parameter):
        flat = torch.cat([each.grad.flatten() for each in parameters] + [parameter.new_zeros(1 << 18)])
        distributed.all_reduce(flat, async_op=True)
        for each, part in zip(
            parameters, flat.split([each.numel() for each in parameters] + [1 << 18]), strict=False
        ):
            each.grad.copy_(part.view_as(each.grad) / 2)

    model.first.weight.register_post_accumulate_grad_hook(last)
    return Plain(model)


@bug("by_hand")
def broadcast_without_wait(model):
    """The weights of rank 0 are broadcast before each forward, and not waited for."""

    def before(module, args):
        for parameter in module.parameters():
            distributed.broadcast(parameter.data, 0, async_op=True)

    if distributed.get_rank():
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
    laid_out = DistributedDataParallel(model, init_sync=False)
    laid_out.register_forward_pre_hook(before)
    return laid_out


@bug("by_hand")
def gathered_without_wait(model):
    """The columns of `second` of all ranks are gathered, and used before they are there."""
    size, rank = distributed.get_world_size(), distributed.get_rank()
    forward = model.second.forward

    def gathered(x):
        outputs = forward(x)
        parts = [torch.zeros(16, outputs.shape[-1], dtype=x.dtype) for _ in range(size)]
        padded = torch.zeros_like(parts[0])
        padded[: len(outputs)] = outputs.detach()
        distributed.all_gather(parts, padded, async_op=True)
        own = parts[rank][: len(outputs)].clone()
        return outputs + (own - outputs).detach()

    model.second.forward = gathered
    return DistributedDataParallel(model)


@bug("by_hand")
def received_without_wait(model):
    """The mean of a shared statistic is sent to the next rank, and used before it has come."""
    rank, size = distributed.get_rank(), distributed.get_world_size()

    def change(module, args, x):
        sent, got = torch.ones(1 << 16, dtype=x.dtype), torch.zeros(1 << 16, dtype=x.dtype)
        works = [distributed.isend(sent, (rank + 1) % size), distributed.irecv(got, (rank - 1) % size)]
        outputs = x * got[-1].clone()
        for work in works:
            work.wait()
        return outputs

    model.second.register_forward_hook(change)
    return DistributedDataParallel(model)


@bug("by_hand")
def hook_without_wait(model):
    """A communication hook of DDP returns the bucket before its all-reduce has ended."""

    def change(gradient):
        gradient = gradient / 2
        distributed.all_reduce(gradient, async_op=True)
        return gradient

    return by_bucket(model, change)


@bug("by_hand")
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

    return by_parameter(model, change)
