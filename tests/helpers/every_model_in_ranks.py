"""Verify every model under ddp and fsdp, as a rank of torchrun; the first rank prints the results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.process_group import init_process_group
from dpexp.distributed.world import World
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.models.registry import MODELS


def main() -> None:
    group, results = None, {}
    for strategy in ("ddp", "fsdp"):
        for model in MODELS:
            config = RunConfig(strategy, model=model, batch_size=7)
            assert isinstance(config.options, RankOptions)
            group = group or init_process_group(World.of(), config.options, devices.HOST)
            prepared = prepare(config, group=group)
            result = verify(prepared)
            results[f"{strategy} {model}"] = [result.passed, result.output_error, result.gradient_error]
    assert group is not None
    if group.is_first:
        print(json.dumps(results), flush=True)
    group.destroy()


if __name__ == "__main__":
    main()
