"""Verify right and wrong layouts as a rank of torchrun; the first rank prints what each case gives.

The arguments are layouts of ``experiments/planted_bugs``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments" / "planted_bugs"))

import torch
from judge import catalogue, prove
from torch import nn

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.process_group import ProcessGroup, init_process_group
from dpexp.distributed.world import World
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.strategies.ranks.sync_batch_norm import on_one_device
from dpexp.strategies.registry import STRATEGIES
from dpexp.timing import Timer
from dpexp.training.trainer import Trainer
from dpexp.verification.compare import relative_error
from dpexp.verification.model_copy import copied

PLANTED = Path(__file__).with_name("planted.py")
ODD_MODELS = Path(__file__).with_name("odd_models.py")
ODD = ("Checkpointed", "Synchronized")
"""Models of ``odd_models``, under ddp."""
LOSSES = {"Tagger": "tokens", "Tagger:reduction=sum": "sum", "Shifted": "", "Tagger:returns=loss": "tokens"}
"""Models of ``losses_inside`` and the reductions of their losses."""
WRITING = {"ddp": ("ddp", "half"), "fsdp": ("fsdp", ""), "clamped by a hook": ("ddp", "clamp")}
"""The strategy and the hook of each case of ``Writing``."""


class Writing(nn.Module):
    """Writes to a buffer and to rows of a table in its forward, and has a hook on a parameter."""

    def __init__(self, hook: str = "") -> None:
        super().__init__()
        self.table = nn.Embedding(12, 5, max_norm=0.5)
        self.fc = nn.Linear(5, 2)
        self.register_buffer("mean", torch.zeros(5))
        if hook == "half":
            self.fc.weight.register_hook(lambda gradient: gradient / 2)
        elif hook == "clamp":  # the mean of clamped gradients is not the clamped mean
            self.fc.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(12, (samples,), generator=generator)
        return ids, torch.randn(samples, 2, generator=generator)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = self.table(ids)
        self.mean.mul_(0.9).add_(vectors.detach().mean(0))
        return self.fc(vectors)


def training_error(config: RunConfig, group: ProcessGroup) -> float:
    """How far the parameters that ranks have trained are from those of a single device."""
    prepared, trained = prepare(config, group=group), []
    prepared.data = prepared.data.to(torch.float64)
    alone = replace(prepared, group=ProcessGroup(), strategy=STRATEGIES["single"](RunConfig("single")))
    for each in (alone, prepared):
        model = copied(prepared.model, torch.float64)
        placed = each.strategy.place(model if each is prepared else on_one_device(model), (), Timer())
        trainer = Trainer(each, placed, Timer())
        trainer.take_steps(4)
        trained.append(trainer.full_parameters())
    return relative_error(*trained)


def main() -> None:
    world = World.of()
    assert world is not None
    shape = {"batch_size": 10, "data": "random:samples=33"}  # batches of 5 + 5 rows, and of 2 + 1
    if world.size == 3:
        shape = {"batch_size": 9, "data": "random:samples=32"}  # 3 + 3 + 3, and 2 + 2 + 1
    config = RunConfig("ddp", model=f"{PLANTED}:Net", **shape)
    assert isinstance(config.options, RankOptions)
    group = init_process_group(world, config.options, devices.HOST)
    results = {"right": verify(prepare(config, group=group))}
    for case, (strategy, hook) in WRITING.items():
        block = {"block": ("fc",)} if strategy == "fsdp" else {}
        model = f"{__file__}:Writing:hook={hook}" if hook else f"{__file__}:Writing"
        options = {"strategy": strategy, "model": model} | shape | block
        results[case] = verify(prepare(RunConfig.from_dict(options), group=group))
    for model, reduction in LOSSES.items():
        for strategy in ("ddp", "fsdp"):
            options = {"strategy": strategy, "model": f"losses_inside:{model}", "reduction": reduction}
            with_loss, name = RunConfig.from_dict(options | shape), f"{strategy} {model}"
            results[name] = verify(prepare(with_loss, group=group))
            error = training_error(with_loss, group)
            results[f"{name} trained"] = replace(results[name], parameter_error=error)
    for model in ODD:
        odd = replace(config, model=f"{ODD_MODELS}:{model}")
        results[model] = verify(prepare(odd, group=group))
        results[f"{model} trained"] = replace(results[model], parameter_error=training_error(odd, group))
    rows = {case: vars(result) for case, result in results.items()}
    rows |= {name: vars(prove(catalogue()[name], world.size)) for name in sys.argv[1:]}
    every_rank = group.all_gather(rows)
    if group.is_first:
        print(json.dumps([every_rank[0], all(each == every_rank[0] for each in every_rank)]), flush=True)
    group.destroy()


if __name__ == "__main__":
    main()
