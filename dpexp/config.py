"""RunConfig: everything that decides what one run does, frozen and validated.

The command line, the ``DPEXP_*`` environment, config files and MLflow params are all made from the
fields below, so an option has its name, type, default and help in one place. A strategy's own
options live in its options class; ``STRATEGY_OPTIONS`` names them.

Nothing here imports torch: ``--help`` is built from this module.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


class ConfigError(ValueError):
    """Bad input: what was wrong, where, what was found and what to do. Exit code 2."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``": did you mean 'block3'?"`` for a near miss of a known word, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f": did you mean '{close[0]}'?" if close else ""


def unknown(what: str, word: str, known: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that is not one of the known: ``unknown WHAT 'word'; it is one of …``."""
    known = sorted(known)
    return ConfigError(
        f"{where + ': ' if where else ''}unknown {what} '{word}'; "
        f"there is {', '.join(known)}{did_you_mean(word, known)}"
    )


def option(
    default: Any,
    help: str,
    *,
    min: float | None = None,
    max: float | None = None,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    flag: str | None = None,
) -> Any:
    """A dataclass field that is also a command-line option.

    ``flag`` spells a boolean's two forms (``--check/--no-check``); ``metavar`` is shown in the help.
    """
    metadata = {"help": help, "min": min, "max": max, "choices": choices, "metavar": metavar, "flag": flag}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class StrategyOptions:
    """Options of a strategy that has none of its own; base of those that have.

    ``launcher`` names what starts the strategy's processes where nothing has started them yet; without
    one the run is one process. ``in_ranks`` is True where a run may be one of several processes (ranks).
    """

    launcher: ClassVar[str | None] = None
    in_ranks: ClassVar[bool] = False


@dataclass(frozen=True)
class RankOptions(StrategyOptions):
    """Options of a strategy that may run as one of several ranks, started by torchrun."""

    in_ranks: ClassVar[bool] = True

    comm: str = option(
        "auto",
        "What the ranks talk through; auto is nccl on CUDA and gloo on the CPU.",
        choices=("auto", "gloo", "nccl"),
    )
    comm_timeout: float = option(60.0, "Seconds after which a silent rank is given up.", min=1.0)
    snapshot_every: int | None = option(
        None, "Steps between snapshots, from which lost ranks, or --resume, go on.", min=1
    )
    resume: str = option("", "Go on with this run from its newest snapshot.", metavar="RUN")


@dataclass(frozen=True)
class LaunchOptions(RankOptions):
    """Options of a strategy that starts torchrun's launcher on this host where none has started it."""

    launcher: ClassVar[str | None] = "torchrun"

    nnodes: str = option("1", "Hosts, as 2, or fewest:most as 1:2.", metavar="N[:M]")
    rdzv_endpoint: str = option(
        "", "Where the hosts meet; the same on each. Default: this host alone.", metavar="HOST:PORT"
    )
    join_timeout: float = option(600.0, "Seconds to wait for the other hosts.", min=1.0)
    max_restarts: int = option(3, "Times that lost ranks are started anew.", min=0)


@dataclass(frozen=True)
class DdpOptions(LaunchOptions):
    """Options of ``ddp``."""

    bucket_mb: float = option(25.0, "Megabytes of gradients that are all-reduced together.", min=0.001)
    find_unused: bool = option(
        False,
        "Look in every step for parameters that get no gradient, instead of refusing them.",
        flag="--find-unused/--all-used",
    )


@dataclass(frozen=True)
class FsdpOptions(LaunchOptions):
    """Options of ``fsdp``."""

    block: tuple[str, ...] = option(
        ("*",), "Submodule to shard as a unit; repeat for several. * is every direct child.", metavar="NAME"
    )


@dataclass(frozen=True)
class BlockOptions(StrategyOptions):
    """Options of ``block``."""

    block: tuple[str, ...] = option(
        ("block2",), "Submodule to wrap, by name or pattern as layers.*; repeat for several.", metavar="NAME"
    )


@dataclass(frozen=True)
class HybridOptions(RankOptions):
    """Options of ``hybrid``."""

    host: tuple[str, ...] = option(
        ("embedding",),
        "Submodule that stays on the host, a name or pattern; repeat for several.",
        metavar="NAME",
    )
    sparse: bool = option(
        False,
        "Sparse gradients for the host's embeddings: only the rows of the batch move.",
        flag="--sparse/--dense",
    )
    pipeline: bool = option(
        False,
        "Split the batch so that the host embeds one part while the accelerator works on the other.",
        flag="--pipeline/--serial",
    )
    shard_embedding: bool = option(
        False,
        "Under torchrun: each rank holds some rows of the embeddings, instead of all of them.",
        flag="--shard-embedding/--whole-embedding",
    )


@dataclass(frozen=True)
class PlaceOptions(StrategyOptions):
    """Options of ``place``."""

    place: tuple[str, ...] = option(
        ("*=cpu",),
        "Submodules and their device, as layers.*=cuda:0; repeat for several. Others go to the first device.",
        metavar="NAME=DEVICE",
    )


STRATEGY_OPTIONS: dict[str, type[StrategyOptions]] = {
    "single": StrategyOptions,
    "whole": StrategyOptions,
    "block": BlockOptions,
    "functional": StrategyOptions,
    "hybrid": HybridOptions,
    "place": PlaceOptions,
    "ddp": DdpOptions,
    "fsdp": FsdpOptions,
}

STRATEGY_HELP: dict[str, str] = {
    "single": "The model on one device: the reference.",
    "whole": "The whole model in DataParallel.",
    "block": "Only the named submodules in DataParallel.",
    "functional": "data_parallel(module, inputs, devices), composed of the four primitives.",
    "hybrid": "Named submodules stay on the host, the rest goes to the accelerators.",
    "place": "Each submodule on the device that a device map names.",
    "ddp": "DistributedDataParallel: one process a device, under torchrun.",
    "fsdp": "FSDP2 fully_shard: one process a device, each with a part of every parameter.",
}

DEFAULT_MODELS = {"block": "blocks", "hybrid": "embedding", "place": "blocks", "fsdp": "blocks"}
"""The default model by strategy; ``linear`` where a strategy is not named."""

DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class RunConfig:
    """One run, completely: the strategy, what it runs on what data, where and how often.

    ``RunConfig("hybrid", virtual=2, options=HybridOptions(sparse=True))``; ``options`` may be a plain
    mapping. Raises ConfigError for a value out of range or a name that is not known here; names
    that only torch or the disk can judge (a model's submodule, a file) are judged before a run opens.
    """

    strategy: str
    model: str = option(
        "",
        "Model and its options, as linear:in=5,out=2, or pkg.mod:factory. "
        "Default: linear; blocks for block; embedding for hybrid.",
        metavar="NAME[:KEY=VALUE,...]",
    )
    data: str = option(
        "random",
        "Data: random[:samples=100], digits, text:PATH, arrays:FILE.npz, sequences, clicks, pkg.mod:factory.",
        metavar="SOURCE",
    )
    loss: str = option(
        "",
        "Loss: mse, l1, huber, cross_entropy or pkg.mod:function. Default: the model's, else by the targets.",
        metavar="NAME",
    )
    batch_size: int = option(
        30, "Samples in a global batch; the last batch of an epoch may have fewer.", min=1
    )
    steps: int = option(100, "Measured steps.", min=1)
    epochs: int | None = option(None, "Train for so many epochs instead of --steps.", min=1)
    warmup: int = option(10, "Steps before the measured ones, not recorded.", min=0)
    phase_steps: int = option(20, "Steps timed phase by phase, after the measured ones.", min=0)
    eval: bool = option(False, "Forward only, in eval mode and without gradients.", flag="--eval/--train")
    lr: float = option(0.01, "Learning rate of SGD.", min=0.0)
    dtype: str = option("float32", "Type of the parameters and the floating-point inputs.", choices=DTYPES)
    autocast: str = option(
        "", "Mixed precision: the type that forwards compute in where that is safe.", choices=("", "bfloat16")
    )
    compile: bool = option(
        False, "Compile what runs on a device with torch.compile.", flag="--compile/--eager"
    )
    seed: int = option(0, "Seed of weights, data and order.", min=0, max=2**63 - 1)
    threads: int | None = option(None, "CPU threads of torch. Default: torch's own choice.", min=1)
    devices: str = option(
        "auto",
        "auto (every accelerator), a number of accelerators, names as cuda:0,cuda:1, or cpu.",
        metavar="DEVICES",
    )
    virtual: int | None = option(None, "Emulate so many devices on the CPU.", min=1, max=1024)
    backend: str = option(
        "auto",
        "torch.nn.parallel (torch) or dpexp.parallel (portable); auto is torch on accelerators.",
        choices=("auto", "torch", "portable"),
    )
    check: bool = option(True, "Verify against a single device before measuring.", flag="--check/--no-check")
    track: bool = option(True, "Deliver the run to MLflow.", flag="--track/--no-track")
    track_timeout: float = option(
        10.0, "Seconds to wait for the last delivery when the run is over.", min=0.0
    )
    experiment: str = option("dpexp", "MLflow experiment.", metavar="NAME")
    run_name: str = option("", "Name of the run. Default: strategy, model and devices.", metavar="NAME")
    options: StrategyOptions = dataclasses.field(default_factory=StrategyOptions)

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGY_OPTIONS:
            raise unknown("strategy", self.strategy, STRATEGY_OPTIONS)
        options = self.options
        wanted = STRATEGY_OPTIONS[self.strategy]
        if isinstance(options, Mapping):
            options = _build(wanted, options, f"options of {self.strategy}")
        elif type(options) is StrategyOptions:
            options = wanted()
        if type(options) is not wanted:
            raise ConfigError(
                f"options of {self.strategy} are a {wanted.__name__}, not a {type(options).__name__}"
            )
        object.__setattr__(self, "options", options)
        if not self.model:
            object.__setattr__(self, "model", DEFAULT_MODELS.get(self.strategy, "linear"))
        for holder in (self, options):
            for field in option_fields(type(holder)):
                _validate(holder, field)
        if self.virtual is not None and self.devices != "auto":
            raise ConfigError(
                f"--virtual {self.virtual} emulates devices and --devices {self.devices} names real ones: "
                "give one of the two"
            )

    def to_dict(self) -> dict[str, Any]:
        """Flat and JSON-ready: the strategy's options stand beside the others."""
        flat = {
            f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "options"
        }
        flat |= {f.name: _plain(getattr(self.options, f.name)) for f in option_fields(type(self.options))}
        return flat

    @classmethod
    def from_dict(cls, flat: Mapping[str, Any], where: str = "config") -> RunConfig:
        """The inverse of ``to_dict``. Unknown keys and values of a wrong type raise ConfigError."""
        if "strategy" not in flat:
            raise ConfigError(f"{where}: no 'strategy'; there is {', '.join(STRATEGY_OPTIONS)}")
        strategy = flat["strategy"]
        if strategy not in STRATEGY_OPTIONS:
            raise unknown("strategy", str(strategy), STRATEGY_OPTIONS, where)
        known = option_names(strategy)
        for key in flat:
            if key != "strategy" and key not in known:
                raise unknown(f"key for {strategy}", key, known, where)
        own = {f.name for f in option_fields(STRATEGY_OPTIONS[strategy])}
        options = {key: value for key, value in flat.items() if key in own}
        rest = {key: _typed(cls, key, value, where) for key, value in flat.items() if key not in own}
        return cls(**rest, options=_build(STRATEGY_OPTIONS[strategy], options, where))

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of ``to_dict``."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def option_fields(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields of a config class that are command-line options, in order."""
    return [field for field in dataclasses.fields(cls) if "help" in field.metadata]


@functools.cache
def types_of(cls: type) -> dict[str, Any]:
    """The type of each field of a config class."""
    return typing.get_type_hints(cls)


def option_names(strategy: str) -> list[str]:
    """The names of every option that a strategy takes."""
    return [f.name for cls in (RunConfig, STRATEGY_OPTIONS[strategy]) for f in option_fields(cls)]


def flag_name(field: str) -> str:
    """``batch_size`` -> ``--batch-size``."""
    return "--" + field.replace("_", "-")


def _build(cls: type[StrategyOptions], values: Mapping[str, Any], where: str) -> StrategyOptions:
    known = [field.name for field in option_fields(cls)]
    for key in values:
        if key not in known:
            raise unknown("option", key, known, where)
    return cls(**{key: _typed(cls, key, value, where) for key, value in values.items()})


def _typed(cls: type, key: str, value: Any, where: str) -> Any:
    """The value as its field's type: a list becomes a tuple, an int a float; else ConfigError."""
    wanted = types_of(cls)[key]
    accepted = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    for kind in accepted:
        if typing.get_origin(kind) is tuple:
            if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
                return tuple(value)
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
    raise ConfigError(f"{where}: '{key}' takes {' or '.join(map(_called, accepted))}, found {value!r}")


def _called(kind: Any) -> str:
    """A type as a user who wrote no Python calls it."""
    if typing.get_origin(kind) is tuple:
        return 'a list of texts, as ["block2"]'
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(kind, "nothing")


def _validate(holder: object, field: dataclasses.Field[Any]) -> None:
    value = _typed(type(holder), field.name, getattr(holder, field.name), type(holder).__name__)
    object.__setattr__(holder, field.name, value)
    if value is None:
        return
    name, low, high = flag_name(field.name), field.metadata["min"], field.metadata["max"]
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(
            f"{name} '{value}': it is one of {', '.join(filter(None, choices))}{did_you_mean(value, choices)}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} {value}: it must be a finite number")
    if low is not None and value < low:
        raise ConfigError(f"{name} {value}: it must be at least {low:g}")
    if high is not None and value > high:
        raise ConfigError(f"{name} {value}: it must be at most {high}")
    if isinstance(value, tuple) and not value:
        raise ConfigError(f"{name}: at least one name is needed")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def home() -> Path:
    """Where runs, the store and its artifacts lie: ``DPEXP_HOME``, else the repository root. Absolute."""
    chosen = os.environ.get("DPEXP_HOME")
    return Path(chosen).expanduser().resolve() if chosen else Path(__file__).resolve().parents[1]
