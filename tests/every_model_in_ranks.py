"""Verify every model under ddp and fsdp, in the ranks that torchrun started; the first prints the results."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpexp import devices
from dpexp.config import RankOptions, RunConfig
from dpexp.distributed import World
from dpexp.distributed.group import join
from dpexp.models import MODELS
from dpexp.prepare import prepare
from dpexp.verify import verify


def main() -> None:
    ranks, found = None, {}
    for strategy in ("ddp", "fsdp"):
        for model in MODELS:
            config = RunConfig(strategy, model=model, batch_size=7)
            assert isinstance(config.options, RankOptions)
            ranks = ranks or join(World.of(), config.options, devices.HOST)
            prepared = prepare(config, ranks=ranks)
            batch = next(prepared.batches(0))
            result = verify(prepared.model, prepared.strategy, prepared.selection.used, prepared.data, batch)
            found[f"{strategy} {model}"] = [result.passed, result.output_error, result.gradient_error]
    assert ranks is not None
    if ranks.is_first:
        print(json.dumps(found), flush=True)
    ranks.leave()
    os._exit(0)  # what torch still has to tear down does not matter


if __name__ == "__main__":
    main()
