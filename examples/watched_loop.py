"""A plain training loop with gradient accumulation, watched: does it compute what a single device computes?

python examples/watched_loop.py                                # one process
torchrun --nproc-per-node 2 examples/watched_loop.py           # two ranks, DDP
torchrun --nproc-per-node 2 examples/watched_loop.py --wrong   # the loss is not divided by the micro-batches

The third trains as happily as the second, and ends with

    VerificationError: the loop does not compute what a single device computes: step 1: gradients: of '0.bias'
    differ by 3.0e+00: the loss of each of 4 micro-batches is not divided by 4: all gradients are 4 times as
    large as they should be
"""

import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for those who have not installed dpexp
import dpexp

MICRO_BATCHES = 4


def main(divisor: int) -> None:
    if is_rank := "RANK" in os.environ:
        distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    run = dpexp.watch(model, nn.functional.mse_loss, name="watched-loop")
    loss_fn = run.loss
    parallel = DistributedDataParallel(model) if is_rank else model
    optimizer = torch.optim.AdamW(parallel.parameters())
    torch.manual_seed(distributed.get_rank() if is_rank else 0)  # each rank draws its own rows
    for _ in range(10):
        optimizer.zero_grad()
        for _ in range(MICRO_BATCHES):
            inputs = torch.randn(16, 8)
            (loss_fn(parallel(inputs), inputs[:, :4].sin()) / divisor).backward()
        optimizer.step()
    print(run.verdict())
    if is_rank:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(divisor=1 if "--wrong" in sys.argv else MICRO_BATCHES)
