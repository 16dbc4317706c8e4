"""Cases that all ranks of a process group run: a test calls ``in_ranks``, and each rank runs this file.

A case is a function of a file, ``case(group)``, or ``case(group, word)`` where it is named ``case:word``.
What it returns must be JSON.
"""

import json
import sys
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "verification" / "cases"))

import torch
from launching import AGENT, start, wait

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.group import ProcessGroup, init_process_group
from dpexp.distributed.world import World
from dpexp.engine.prepare import prepare
from dpexp.strategies.ranks import on_one_device
from dpexp.strategies.registry import STRATEGIES
from dpexp.timing import Timer
from dpexp.verification.compare import relative_error
from dpexp.verification.model_copy import copied


def in_ranks(ranks: int, file: str, *cases: str) -> dict[str, list[Any]]:
    """What each case returned, by rank; the ranks are started once for all of them.

    They are new processes: forked ones, which verified several models one after the other, ended now and then
    with a corrupt heap in gloo's threads.
    """
    done = wait(start(*AGENT, str(ranks), __file__, file, *cases))
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Any]] = json.loads(done.stdout)
    assert list(found) == list(cases)
    return found


def training_error(config: RunConfig, group: ProcessGroup) -> float:
    """How far the parameters that ranks have trained are from those of a single device."""
    prepared, trained = prepare(config, group=group), []
    prepared.data = prepared.data.to(torch.float64)
    alone = replace(prepared, strategy=STRATEGIES["single"](RunConfig("single").options))
    for each in (alone, prepared):
        model = copied(prepared.model, torch.float64)
        placed = each.strategy.place(model if each is prepared else on_one_device(model), (), Timer())
        trainer = each.trainer(placed)
        trainer.take_steps(map(each.part, islice(each.endless_batches(), 4)))
        trained.append(trainer.complete_parameters())
    return relative_error(*trained)


def main(file: str, *cases: str) -> None:
    sys.path.insert(0, str(Path(file).parent))
    module, world, options = import_module(Path(file).stem), World.of(), RunConfig("ddp").options
    assert world is not None
    assert isinstance(options, RankOptions)
    group = init_process_group(world, options, devices.HOST)
    results = {}
    for case in cases:
        name, *words = case.split(":", 1)
        results[case] = group.all_gather(getattr(module, name)(group, *words))
    if group.is_first:
        print(json.dumps(results), flush=True)
    group.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
