"""What it costs to watch a loop, and the smallest wrong weight that is found.

python experiments/watched_loops/measure.py          # about five minutes on two cores; writes the tables of README.md
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dpexp
from dpexp.config.errors import VerificationError
from experiments.harness import environments, markdown

README = Path(__file__).with_name("README.md")
WIDTH, ROWS, STEPS, REPEATS = 1536, 64, 4, 5
LAYOUTS = {"one process": 0, "DistributedDataParallel": 2, "fully_shard": 2}
TYPES = ("float32", "bfloat16", "autocast")
WRONG = (1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3)
SEEDS = 10


# --- the cost of a watched step ------------------------------------------------------------------------------


def train(layout: str, watched: bool) -> dict[str, float]:
    """The median time of four steps in s, and the peak memory of the process in MB."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])  # 7 million parameters
    watch = dpexp.watch(model, F.mse_loss, steps=STEPS, track=False) if watched else None
    loss = watch.loss if watch is not None else F.mse_loss
    if layout == "fully_shard":
        fully_shard(model)
    elif layout == "DistributedDataParallel":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(distributed.get_rank() if distributed.is_initialized() else 0)
    times = []
    for _ in range(STEPS):
        inputs = torch.randn(ROWS, WIDTH)
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss(model(inputs), inputs).backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    if watch is not None and watch.verdict().steps != STEPS:
        raise RuntimeError(f"{watch.steps} of {STEPS} steps were compared")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": statistics.median(times), "megabytes": peak}


def in_ranks(layout: str, watched: bool) -> dict[str, float]:
    """The same in new processes, whose peak memory is their own; that of the first rank."""
    words = [sys.executable, __file__, layout, str(int(watched))]
    started = [
        subprocess.Popen(words, env=os.environ | each, stdout=subprocess.PIPE, text=True)
        for each in environments(LAYOUTS[layout])
    ]
    printed = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        raise RuntimeError(f"{layout}: a rank has failed")
    return json.loads(printed[0].splitlines()[-1])


def rank(layout: str, watched: bool) -> None:
    """One rank of ``in_ranks``."""
    torch.set_num_threads(1)
    if LAYOUTS[layout]:
        distributed.init_process_group("gloo")
    print(json.dumps(train(layout, watched)), flush=True)
    if LAYOUTS[layout]:
        distributed.barrier()
        distributed.destroy_process_group()


def cost() -> str:
    """A row for each layout: plain and watched in turn, the ratio of the pairs."""
    titles, rows = ("layout", "plain step, ms", "watched step, ms", "ratio", "memory, watched over plain"), []
    for layout, ranks in LAYOUTS.items():
        pairs = [(in_ranks(layout, False), in_ranks(layout, True)) for _ in range(REPEATS)]
        plain, watched = ([each["seconds"] * 1e3 for each in side] for side in zip(*pairs, strict=True))
        ratios = [b / a for a, b in zip(plain, watched, strict=True)]
        memory = [b["megabytes"] / a["megabytes"] for a, b in pairs]
        name, ratio = f"{layout}, {ranks or 1} x {ROWS} rows", f"**{spread(ratios, '.1f')}**"
        rows.append((name, spread(plain, ".0f"), spread(watched, ".0f"), ratio, spread(memory, ".2f")))
    return markdown(titles, rows)


def spread(values: list[float], form: str) -> str:
    """The median and the range."""
    return f"{statistics.median(values):{form}} [{min(values):{form}}–{max(values):{form}}]"


# --- the smallest wrong weight -------------------------------------------------------------------------------


def is_found(kind: str, wrong: float, seed: int) -> bool:
    """Whether a loop is called wrong that counts the first of four micro-batches (1 + wrong) times."""
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    model.to(dtype)
    watch = dpexp.watch(model, F.mse_loss, steps=1, track=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(4):
        inputs, targets = torch.randn(16, 32, dtype=dtype), torch.randn(16, 8, dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16) if kind == "autocast" else nullcontext():
            outputs = model(inputs)
        (watch.loss(outputs.to(dtype), targets) / 4 * (1 + wrong * (number == 0))).backward()
    optimizer.step()
    try:
        watch.verdict()
    except VerificationError:
        return True
    return False


def smallest() -> str:
    """A row for each type: how often each wrong weight was found, and how often a right loop was called wrong."""
    rows = []
    for kind in TYPES:
        found = [sum(is_found(kind, wrong, seed) for seed in range(SEEDS)) for wrong in (0.0, *WRONG)]
        rows.append((kind, *(f"{each} of {SEEDS}" for each in found)))
    return markdown(("type", "right", *(f"{wrong:g}" for wrong in WRONG)), rows)


def write(name: str, table: str) -> None:
    """Write a table between the marks of this name in README.md."""
    begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
    before, _, rest = README.read_text().partition(begin)
    README.write_text(before + begin + table + "\n" + end + rest.partition(end)[2])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank(sys.argv[1], sys.argv[2] == "1")
    else:
        torch.set_num_threads(1)
        write("smallest", smallest())
        write("cost", cost())
