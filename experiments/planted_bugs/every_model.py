"""Is there a false alarm? Every right layout of every model, of this repository and of others, must be verified."""

import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

import hub

PARTS = runpy.run_path(str(HERE.parent / "equivalence" / "config.py"))["PARTS"]
"""By model, the submodule that ``block`` and ``place`` name, and the one ``hybrid`` leaves on the host."""

BLOCKS = {"opt": "model.decoder.layers.*"}
"""The blocks of fsdp where the default does not do: OPT's forward goes past its child ``model``."""


def configs(ranks: int) -> list[dict[str, Any]]:
    """The options of every run: a layout in one process (``virtual``), or over ranks."""
    found = []
    for model, (block, host) in PARTS.items():
        common = {"model": model, "batch_size": 7}
        parts = {
            "block": {"block": [block]},
            "hybrid": {"host": [host]},
            "place": {"place": [f"{block}=cpu:1"]},
        }
        for strategy in ("whole", "functional", "block", "hybrid", "place"):
            found.append(common | {"strategy": strategy, "virtual": ranks} | parts.get(strategy, {}))
        found += [common | {"strategy": strategy} for strategy in ("ddp", "fsdp")]
    for model in others():
        common = model | {"batch_size": 7}
        blocks = {"block": [BLOCKS[name]]} if (name := model["model"].rpartition(":")[2]) in BLOCKS else {}
        found.append(common | {"strategy": "whole", "virtual": ranks})
        found += [common | {"strategy": "ddp"}, common | {"strategy": "fsdp"} | blocks]
    return found


def others() -> list[dict[str, str]]:
    """Models and data of the installed packages."""
    found = []
    if importlib.util.find_spec("transformers"):
        text = f"text:{HERE / 'README.md'}"
        found += [{"model": f"{HERE / 'hub.py'}:{name}", "data": text} for name in hub.LANGUAGE]
        found.append({"model": f"{HERE / 'hub.py'}:vit", "data": "random:samples=17"})
    if importlib.util.find_spec("torchvision"):
        found += [
            {"model": f"{HERE / 'hub.py'}:vision:name={name}", "data": "random:samples=17"}
            for name in hub.VISION[1:]
        ]
    return found


def verified(options: dict[str, Any], group: Any = None) -> dict[str, Any]:
    """A row of the table: what verification says of a run with these options."""
    from dpexp.config.errors import describe
    from dpexp.config.run_config import RunConfig
    from dpexp.engine.prepare import prepare
    from dpexp.engine.verify import verify

    *_, name = options["model"].replace("vision:name=", "").rpartition(":")
    row = {"model": name, "layout": options["strategy"]}
    try:
        result = verify(prepare(RunConfig.from_dict(options), group=group))
    except Exception as error:  # the same on all ranks, whatever a model raises
        return row | {"passed": False, "note": describe(error)}
    return row | {"passed": result.passed, "note": result.cause or result.note}


def in_one_process(ranks: int) -> list[dict[str, Any]]:
    """The rows of the layouts over virtual devices."""
    import torch

    torch.set_num_threads(1)
    return [verified(options) | {"ranks": ranks} for options in configs(ranks) if "virtual" in options]


def of_ranks() -> None:
    """Verify as a rank of torchrun; the first rank prints the rows."""
    from dpexp import devices
    from dpexp.config.run_config import RunConfig
    from dpexp.config.strategy_options import RankOptions
    from dpexp.distributed.torch_process_group import init_process_group
    from dpexp.distributed.world import World

    world, options = World.of(), RunConfig("ddp").options
    assert world is not None
    assert isinstance(options, RankOptions)
    group = init_process_group(world, options, devices.HOST)
    runs = [each for each in configs(world.size) if "virtual" not in each]
    rows = [verified(each, group) | {"ranks": world.size} for each in runs]
    if group.is_first:
        print(json.dumps(rows), flush=True)
    group.destroy()


if __name__ == "__main__":
    if "RANK" in os.environ:
        of_ranks()
    else:
        print(json.dumps(in_one_process(int(sys.argv[1]))))
