"""What it costs to watch a loop, and the smallest wrong weight that is found.

python experiments/watched_loops/measure.py                  # writes the tables of README.md
python experiments/watched_loops/measure.py --quick PATTERN  # one pair of the loops whose names have it, printed
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # another dpexp can be measured by PYTHONPATH

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dpexp
from dpexp.config.errors import VerificationError
from experiments.harness import environments, markdown

README = Path(__file__).with_name("README.md")
ROWS, TOKENS, CLIP_NORM, REPEATS = 2, 64, 0.1, 5
TYPES = ("float32", "bfloat16", "autocast")
WRONG = (1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3)
SEEDS = 10


# --- the loops -----------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A block of GPT-2: (rows, tokens, width) to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm, self.norm_of_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        some = self.qkv(self.norm(hidden)).unflatten(-1, (3, self.heads, 64)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*some, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.norm_of_mlp(hidden))


class GPT(nn.Module):
    """GPT-2 without dropout: ids (rows, tokens) to logits (rows, tokens, vocabulary)."""

    def __init__(self, blocks: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


@dataclass(frozen=True)
class Loop:
    """A training loop of a ``GPT`` of this size. ``ranks`` is 0 for one process without ranks.

    It is watched for so many ``steps``, and takes so many ``after`` the watch.
    """

    size: tuple[int, int, int]
    layout: str = "one process"
    ranks: int = 0
    micro_batches: int = 1
    steps: int = 2
    after: int = 0
    replica: str | None = None


GPT2, MEDIUM, SMALL = (12, 768, 50257), (12, 512, 48000), (8, 512, 50257)
TWO_RANKS = "fully_shard", 2
LOOPS = {
    "124 million, one process, 1 micro-batch": Loop(GPT2),
    "124 million, one process, 4 micro-batches": Loop(GPT2, micro_batches=4),
    "51 million, fully_shard, 2 ranks": Loop(SMALL, *TWO_RANKS),
    "51 million, fully_shard, 4 ranks": Loop(SMALL, "fully_shard", 4),
    '51 million, fully_shard, 2 ranks, `replica="blocks"`': Loop(SMALL, *TWO_RANKS, replica="blocks"),
    '51 million, fully_shard, 4 ranks, `replica="blocks"`': Loop(SMALL, "fully_shard", 4, replica="blocks"),
    "62 million, one process, 2 micro-batches": Loop(MEDIUM, "one process", 0, 2, 4, 3),
    "62 million, DDP, 2 ranks, 2 micro-batches": Loop(MEDIUM, "DDP", 2, 2, 4, 3),
    "62 million, fully_shard, 2 ranks, 2 micro-batches": Loop(MEDIUM, *TWO_RANKS, 2, 4, 3),
}


def laid_out(model: GPT, layout: str) -> nn.Module:
    """The model in this layout."""
    if layout == "fully_shard":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return DistributedDataParallel(model) if layout == "DDP" else model


# --- the cost of a watched step ------------------------------------------------------------------------------


def train(loop: Loop, watched: bool) -> dict[str, float]:
    """The median times of a step in s while it is watched and ``after`` it, and the ``peak`` memory in N.

    N are the bytes of the model's parameters in float32. The first step is left out of the times: there the
    optimizer has no state yet.
    """
    torch.manual_seed(0)
    model: Any = GPT(*loop.size)
    n = 4 * sum(each.numel() for each in model.parameters())
    options: dict[str, Any] = {"steps": loop.steps, "track": False, "replica": loop.replica}
    watch = dpexp.watch(model, F.cross_entropy, **options) if watched else None
    loss: Callable[..., torch.Tensor] = F.cross_entropy if watch is None else watch.loss
    model = laid_out(model, loop.layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(distributed.get_rank() if loop.ranks else 0)
    times = []
    Path("/proc/self/clear_refs").write_text("5")  # the peak of this process begins now
    for _ in range(loop.steps + loop.after):
        batches = torch.randint(loop.size[2], (loop.micro_batches, ROWS, TOKENS + 1))
        begun = time.perf_counter()
        optimizer.zero_grad()
        for ids in batches:
            logits = model(ids[:, :-1])
            (loss(logits.flatten(0, 1), ids[:, 1:].flatten()) / loop.micro_batches).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        times.append(time.perf_counter() - begun)
    peak = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]  # in KB
    if watch is not None and watch.verdict().steps != loop.steps:
        raise RuntimeError(f"{watch.steps} of {loop.steps} steps were compared: {watch}")
    seconds = statistics.median(times[1 : loop.steps])
    after = statistics.median(times[loop.steps :] or [math.nan])
    return {"seconds": seconds, "after": after, "peak": int(peak) * 1024 / n}


def in_ranks(name: str, watched: bool) -> dict[str, float]:
    """The same in new processes; of each figure the largest of the ranks."""
    words = [sys.executable, __file__, "--rank", name, str(int(watched))]
    started = [
        subprocess.Popen(words, env=os.environ | each, stdout=subprocess.PIPE, text=True)
        for each in environments(LOOPS[name].ranks)
    ]
    printed = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        raise RuntimeError(f"{name}: a rank has failed")
    of_ranks = [json.loads(each.splitlines()[-1]) for each in printed]
    return {key: max(each[key] for each in of_ranks) for key in of_ranks[0]}


def rank(name: str, watched: bool) -> None:
    """One rank of ``in_ranks``."""
    torch.set_num_threads(1)
    if LOOPS[name].ranks:
        distributed.init_process_group("gloo")
    print(json.dumps(train(LOOPS[name], watched)), flush=True)
    if LOOPS[name].ranks:
        distributed.barrier()
        distributed.destroy_process_group()


def cost(names: list[str], repeats: int) -> Iterator[tuple[str, ...]]:
    """A row for each loop: plain and watched in turn, the ratios of the pairs."""
    for name in names:
        pairs = [(in_ranks(name, False), in_ranks(name, True)) for _ in range(repeats)]
        plain, watched = ([each["seconds"] for each in side] for side in zip(*pairs, strict=True))
        ratios = [b / a for a, b in zip(plain, watched, strict=True)]
        after = [b["after"] / a["after"] for a, b in pairs]
        added = [b["peak"] - a["peak"] for a, b in pairs]
        of_plain = statistics.median(each["peak"] for each, _ in pairs)
        yield (
            name,
            spread(plain, ".2f"),
            f"**{spread(ratios, '.1f')}**",
            spread(after, ".2f") if LOOPS[name].after else "–",
            f"{of_plain:.1f}",
            f"**{spread(added, '.1f')}**",
        )


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


TITLES = ("loop", "plain step, s", "watched over plain", "after the watch", "plain at most, N", "added, N")

if __name__ == "__main__":
    words = sys.argv[1:]
    torch.set_num_threads(1)
    if words[:1] == ["--rank"]:
        rank(words[1], words[2] == "1")
    elif words[:1] == ["--quick"]:
        names = [name for name in LOOPS if not words[1:] or any(each in name for each in words[1:])]
        print(markdown(TITLES, []))
        for row in cost(names, 1):
            print(f"| {' | '.join(row)} |", flush=True)
    else:
        write("smallest", smallest())
        write("cost", markdown(TITLES, cost(list(LOOPS), REPEATS)))
