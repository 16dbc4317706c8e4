"""The cases: layouts and models in runs, each with what it claims of its run.

``@right``, ``@wrong``, ``@not_comparable`` or ``@refused`` stands before a function or a class of a file
here, whose docstring says what is special in it. It names over what the case is laid out, and options of the
run. A class is the model. A function changes the model that is laid out, or returns what it makes of it.
``test_cases.py`` judges them all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from pieces import Ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dpexp.config.run_config import RunConfig
from dpexp.parallel import DataParallel

FILES = (
    "tensor_parallel", "data_parallel", "sharded", "pipeline", "mixed", "own_steps", "hidden", "described",
    "training_mode", "rare_paths", "edge_rows", "written", "losses", "optimizers", "odd_models", "reported",
    "right_models", "right_layouts",
)  # fmt: skip
SHORT: dict[str, Any] = {
    "batch_size": 10,
    "data": "random:samples=34",
    "warmup": 1,
    "steps": 12,
    "phase_steps": 0,
    "threads": 1,
}
"""Runs: an epoch is batches of 10, 10, 10 and 4 rows, which two devices or ranks share."""
BY_HAND: dict[str, Any] = SHORT | {
    "batch_size": 12,
    "data": "random:samples=31",
    "warmup": 2,
    "steps": 1,
    "optimizer": "adam",
}
"""Of layouts by hand over two to four: 12 rows divide evenly by each number, and the last 7 by none."""

# --- over what a case is laid out ------------------------------------------------------------------------

PROCESS: dict[str, dict[str, Any]] = {
    "single": {},
    "whole": {"virtual": 2},
    "functional": {"virtual": 2},
    "block": {"virtual": 2, "block": ("second",)},
    "hybrid": {"virtual": 2, "host": ("first",)},
    "place": {"virtual": 2, "place": ("second=cpu:1",)},
    "host": {},
    "replicas": {"virtual": 2},
    "devices": {},
}
"""Strategies and ``BASES`` in one process, with their options."""
RANKS = {"ddp": "", "fsdp": "", "ranks": "dp", "shards": "dp", "alike": "tp"}
"""Those of two ranks, with the dimension of their mesh."""
MESHES = ("dp", "tp", "pp", "dp,tp", "dp_replicate,dp_shard")
"""Layouts by hand: their functions get ``Ranks`` for each dimension. Of ``devices`` they get the list."""


def host(model, devices):
    return model


def replicas(model, devices):
    return DataParallel(model, devices)


def ranks(model, mesh):
    return DistributedDataParallel(model)


def shards(model, mesh):
    return fully_shard(model, mesh=mesh)


def alike(model, mesh):
    return model


BASES = {each.__name__: each for each in (host, replicas, ranks, shards, alike)}
"""Layouts of strategy ``custom``."""
STRATEGIES = [each for each in (*PROCESS, *RANKS) if each not in (*BASES, "devices")]


def laid_out(change: Callable[..., nn.Module | None], over: str) -> Callable[..., nn.Module]:
    """The layout ``over`` of what ``change`` makes of the model; it is kept as ``change``."""
    base = BASES.get(over, host)

    def over_ranks(model: nn.Module, mesh: Any) -> nn.Module:
        given = [Ranks(mesh, each) for each in over.split(",")] if over in MESHES else []
        changed = change(model, *given)
        return base(model, mesh) if changed is None else changed

    def in_one_process(model: nn.Module, devices: list[torch.device]) -> nn.Module:
        changed = change(model, *([devices] if over == "devices" else []))
        return base(model, devices) if changed is None else changed

    layout = in_one_process if over in PROCESS else over_ranks
    layout.change = change  # type: ignore[attr-defined]
    return layout


# --- what is claimed -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A run, and the verdict on it.

    The words are in the cause of a wrong one, in the error of a refused one, and in the notes of others.
    """

    file: str
    name: str
    over: str
    options: dict[str, Any]
    verdict: str
    words: str = ""
    module: str = ""
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.file}.{self.name}/{self.over}"

    @property
    def is_of_ranks(self) -> bool:
        return self.over not in PROCESS

    @property
    def worlds(self) -> tuple[int, ...]:
        """The numbers of ranks, or of devices, over which it is laid out."""
        if "," in self.over:
            return (4,)
        return (2, 3) if self.over in (*MESHES, "devices") else (2,)

    def config(self, count: int) -> RunConfig:
        """The run over so many ranks, or devices."""
        where: dict[str, Any] = {"virtual": count} if self.over == "devices" else PROCESS.get(self.over, {})
        if mesh := RANKS.get(self.over, self.over if self.over in MESHES else ""):
            names = mesh.split(",")
            where = {"mesh": ",".join(f"{each}={count // len(names)}" for each in names)}
        return RunConfig.from_dict(where | self.options)

    def names(self, fields: dict[str, Any], count: int) -> bool:
        """Whether an error over so many ranks has this kind and module; of several, one for each number."""
        modules = self.module.split(",")
        module, root = modules[(count - 2) % len(modules)], fields["module"].partition(".")[0]
        return module in ("", root) and self.kind in ("", fields["kind"])

    def problem(self, count: int, ends: list[dict[str, Any]]) -> str:
        """What is not as it is claimed where its run ends so on each rank; nothing where all is."""
        (error, fields, verification), words = ends[0].values(), self.words.replace("{n}", str(count))
        if any(end["fields"] != fields for end in ends):
            return f"the ranks have different errors: {ends}"
        parts = [verification.get(part) or {} for part in ("first_steps", "last_step")]
        is_complete = words in str(verification) if words else all(part.get("passed") for part in parts)
        is_as_claimed = {
            "right": not error and verification.get("passed") and is_complete,
            "wrong": fields and words in fields["cause"] and self.names(fields, count),
            "not comparable": not error and not verification["passed"] and words in verification["note"],
            "refused": error and not fields and words in error,
        }
        return "" if is_as_claimed[self.verdict] else f"it is not {self.verdict}, with '{words}': {ends[0]}"


_CASES: list[Case] = []


def _claims(verdict: str) -> Callable[..., Any]:
    """The decorator of this verdict, which may stand before a case several times."""

    def decorator(
        *over: str, words: str = "", module: str = "", kind: str = "", **options: Any
    ) -> Callable[[Any], Any]:
        assert verdict == "right" or words or module or kind

        def register(case: Any) -> Any:
            change = getattr(case, "change", case)
            file, name = change.__module__, change.__name__
            for each in over:
                given = _options(each, f"{file}:{name}", isinstance(change, type)) | options
                _CASES.append(Case(file, name, each, given, verdict, words, module, kind))
            return change if isinstance(change, type) else laid_out(change, over[0])

        return register

    return decorator


def _options(over: str, case: str, is_model: bool) -> dict[str, Any]:
    """The options of a run of a model, or of a layout of the usual model."""
    if is_model:
        of_base = {"strategy": "custom", "layout": f"{__name__}:{over}"}
        return SHORT | {"model": case} | (of_base if over in BASES else {"strategy": over})
    is_by_hand = over in (*MESHES, "devices")
    usual = BY_HAND | {"model": "nets:Block"} if is_by_hand else SHORT | {"model": "nets:Net"}
    return usual | {"strategy": "custom", "layout": case}


right, wrong = _claims("right"), _claims("wrong")
not_comparable, refused = _claims("not comparable"), _claims("refused")


def cases() -> dict[str, Case]:
    """All of them by name, in the order of the files; over the same layout one may stand twice."""
    for file in FILES:
        import_module(file)
    of_files = [case for file in FILES for case in _CASES if case.file == file]  # a run may import a copy
    names = [str(case) for case in of_files]
    return {name + "+" * names[:at].count(name): of_files[at] for at, name in enumerate(names)}
