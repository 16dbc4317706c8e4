"""A silent bug, found in ten seconds: python examples/silent_bug.py

Two ranks train with DDP on texts of different lengths. Each takes the mean over its own tokens, and DDP the mean
over the ranks. So a token of the short texts counts more than one of the long texts. The loss falls all the same.
Public reports of this kind: huggingface/transformers#34191, pytorch/torchtitan#2416.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for those who have not installed dpexp
import dpexp


def train(rank: int, store: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50), nn.Flatten(0, 1))
    run = dpexp.watch(model, nn.CrossEntropyLoss(ignore_index=-100), track=False)
    loss_fn = run.loss
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(rank)  # each rank draws its own texts
    for step in range(20):
        tokens = torch.randint(50, (4, 12))
        labels = tokens.add(1).fmod(50)
        labels[:, 4 if rank else 12 :] = -100  # the texts of rank 1 have 4 tokens, the rest is padding
        loss = loss_fn(model(tokens), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    if rank == 0:
        print(run)
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (f"{folder}/store",), nprocs=2)
