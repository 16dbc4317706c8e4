"""Data parallelism by hand: the tutorial's Linear(5, 2), split over three devices beside a single one.

::

    batch of 30 rows ── scatter ──► 10 rows       10 rows       10 rows
    model            ── replicate ► its weights   a copy        a copy
                     parallel_apply    │             │             │         a thread for each replica
    30 outputs       ◄── gather ─── 10 outputs    10 outputs    10 outputs
       loss
    gradients        ◄─ backward ── the same way back: those of the copies add up in the model's weights

Every step takes one batch on three devices and on one, and prints how far they are apart. Without several GPUs
the three devices are the CPU. ``python scripts/run.py whole --virtual 3 --warmup 0 --steps 4`` computes the same
numbers.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for those who have not installed dpexp
from dpexp.data.rng import generator

Weights = dict[str, Tensor]


def scatter(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    """``(rows, 5)`` -> chunks of consecutive rows: 10 rows over three devices are 4 + 4 + 2."""
    return [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]


def replicate(model: nn.Module, devices: Sequence[torch.device]) -> list[Weights]:
    """The weights, and a copy for each further device; autograd adds a copy's gradients to the original's."""
    weights = dict(model.named_parameters())
    copies = [{name: each.to(device, copy=True) for name, each in weights.items()} for device in devices[1:]]
    return [weights, *copies]


def parallel_apply(model: nn.Module, replicas: Sequence[Weights], chunks: Sequence[Tensor]) -> list[Tensor]:
    """The model's outputs of each chunk, with the weights of its replica, in a thread of its own."""
    modules = [deepcopy(model) for _ in chunks]  # a call holds its weights in its module meanwhile
    with ThreadPoolExecutor() as threads:
        return list(threads.map(functional_call, modules, replicas, chunks))


def gather(outputs: Sequence[Tensor], device: torch.device) -> Tensor:
    """The outputs in the order of the rows, on one device."""
    return torch.cat([each.to(device) for each in outputs])


def data_parallel(model: nn.Module, batch: Tensor, devices: Sequence[torch.device]) -> Tensor:
    """``(rows, 5)`` -> ``(rows, 2)``: what ``model(batch)`` computes, over the devices."""
    chunks = scatter(batch, devices)
    replicas = replicate(model, devices[: len(chunks)])
    return gather(parallel_apply(model, replicas, chunks), devices[0])


def batches() -> list[tuple[Tensor, Tensor]]:
    """The tutorial's 100 random samples in batches of 30, 30, 30 and 10, as run.py draws them for seed 0."""
    rng = generator(0, "random samples")
    inputs, targets = torch.randn(100, 5, generator=rng), torch.randn(100, 2, generator=rng)
    order = torch.randperm(100, generator=generator(0, "order of epoch 0"))
    return [(inputs[rows], targets[rows]) for rows in order.split(30)]


def main() -> None:
    count = torch.cuda.device_count()
    devices = [torch.device("cuda", i) for i in range(count)] if count > 1 else [torch.device("cpu")] * 3
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    single = nn.Linear(5, 2)
    single.load_state_dict(model.state_dict())
    model, single = model.to(devices[0]), single.to(devices[0])
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model, single)]
    for step, (inputs, targets) in enumerate(batches()):
        inputs, targets = inputs.to(devices[0]), targets.to(devices[0])
        losses = []
        for outputs, optimizer in zip((data_parallel(model, inputs, devices), single(inputs)), optimizers):
            losses.append(nn.functional.mse_loss(outputs, targets))
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
        split = " + ".join(str(len(chunk)) for chunk in scatter(inputs, devices))
        apart = max((a.grad - b.grad).abs().max() for a, b in zip(model.parameters(), single.parameters()))
        print(f"step {step}: {split:12}  loss {losses[0]:.7f}  on one device {losses[1]:.7f}", end="")
        print(f"  gradients differ by {apart:.1e}")


if __name__ == "__main__":
    main()
