"""RunConfig: the complete configuration of one run, frozen and validated.

The command line, the ``DPEXP_*`` environment, config files and MLflow params are all made from the
fields below. So the name, type, default and help of an option stand in one place. The options of a
strategy are in ``strategy_options``. This module does not import torch: ``--help`` is made from it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import ConfigError, unknown
from dpexp.config.options import option, option_fields, to_json, validate
from dpexp.config.strategy_options import STRATEGY_OPTIONS, StrategyOptions

FILING = frozenset({"track", "track_timeout", "experiment", "run_name"})
"""The options that say where a run is kept, and under which names; they change nothing of it."""
DTYPES = ("float32", "float64", "bfloat16", "float16")
OWN = "FILE.py:NAME or package.module:NAME"
"""How options name what a user has written."""
BATCH_SIZE = 30
"""The samples in a batch by default, of data that has so many."""
MAX_VIRTUAL = 128
"""The most virtual devices: PyTorch keeps the number of a device in 8 bits, with a sign."""


@dataclass(frozen=True)
class RunConfig:
    """One run: the strategy, the model and data, the devices and the number of steps.

    ``RunConfig("hybrid", virtual=2, options=HybridOptions(sparse=True))``; ``options`` may be a mapping.
    Raises ConfigError for a wrong type, a value out of range and an unknown name. Names of submodules
    and files are checked when the run is prepared.
    """

    strategy: str
    model: str = option(
        "",
        f"Model and its options, as linear:in=5,out=2; run.py models lists them. Or your own, {OWN}: a class "
        "or a function that makes it, or a module. "
        "Default: linear; blocks for block, place, fsdp and custom; embedding for hybrid.",
        metavar="NAME[:KEY=VALUE,...]",
    )
    data: str = option(
        "random",
        f"random[:samples=100], digits or text:PATH. Or your own, {OWN}: tensors, a Dataset, a "
        "DataLoader, or a function that makes them.",
        metavar="SOURCE",
    )
    loss: str = option(
        "",
        f"mse, l1, huber or cross_entropy. Or your own, {OWN}: a function of outputs and targets. "
        "Default: the model's, else by the targets.",
    )
    metrics: str = option(
        "",
        f"Your own, {OWN}: a function of outputs and targets that returns {{name: number}}. "
        "Default: the model's metrics.",
    )
    validation: str = option(
        "",
        "Data to evaluate on after each epoch, or after --steps; as --data. Default: what --data holds out.",
        metavar="SOURCE",
    )
    reduction: str = option(
        "",
        "What the loss of a batch is, by which the losses of its parts are weighted: a mean over its rows, a "
        "mean over its tokens (targets other than -100), or a sum. "
        "Default: tokens if the loss or the model has a method loss_weight, else rows.",
        choices=("", "rows", "tokens", "sum"),
    )
    batch_size: int = option(
        BATCH_SIZE,
        "Samples in a global batch, or all where the data has fewer than the default; the last of an epoch "
        "may have fewer.",
        min=1,
        max=10**9,
    )
    steps: int = option(100, "Measured steps.", min=1, max=10**9)
    epochs: int | None = option(None, "Train for this number of epochs instead of --steps.", min=1, max=10**9)
    warmup: int = option(10, "Steps before the measured ones, not recorded.", min=0, max=10**9)
    phase_steps: int = option(20, "Steps timed phase by phase, after the measured ones.", min=0, max=10**9)
    profile: bool = option(
        False,
        "Take further steps under torch.profiler: a trace, and a table of the costliest operators.",
        flag="--profile/--no-profile",
    )
    eval: bool = option(False, "Forward only, in eval mode and without gradients.", flag="--eval/--train")
    optimizer: str = option(
        "sgd",
        "sgd, momentum, adam, adamw, adamax, nadam, radam, adagrad, adadelta or rmsprop, "
        f"with options as adamw:weight_decay=0.01. Or your own, {OWN}: a function of the parameters.",
        metavar="NAME[:KEY=VALUE,...]",
    )
    lr: float = option(0.01, "Learning rate.", min=0.0)
    clip_norm: float | None = option(
        None, "Largest norm of all gradients together; larger ones are scaled down to it.", min=1e-12
    )
    accumulate: int = option(
        1,
        "Batches whose gradients are averaged for one step of the optimizer; a smaller one counts as much.",
        min=1,
        max=10**6,
    )
    dtype: str = option("float32", "Type of the parameters and the floating-point inputs.", choices=DTYPES)
    autocast: str = option(
        "", "Mixed precision: the type of forward and loss where that is safe.", choices=("", "bfloat16")
    )
    seed: int = option(0, "Seed of the weights, the data and its order.", min=0, max=2**63 - 1)
    threads: int | None = option(
        None,
        "CPU threads of torch in each process. Default: OMP_NUM_THREADS where it is set, else all cores but "
        "one, which the delivery to MLflow uses.",
        min=1,
        max=1024,
    )
    devices: str = option(
        "auto",
        "auto (every accelerator; without one, whole, block, functional and place emulate two devices, "
        "hybrid one), a number of accelerators, names as cuda:0,cuda:1, or cpu (none). ddp, fsdp and custom "
        "with a mesh start a process for each, and on a machine without accelerators as many as the number.",
        metavar="DEVICES",
    )
    virtual: int | None = option(None, "Emulate this number of devices on the CPU.", min=1, max=MAX_VIRTUAL)
    backend: str = option(
        "auto",
        "torch.nn.parallel (torch) or dpexp.parallel (portable); auto is torch on accelerators.",
        choices=("auto", "torch", "portable"),
    )
    checkpoint: bool = option(
        False,
        "Activation checkpointing: backward computes the activations of the model's blocks again. Blocks are "
        "the modules in its outermost lists, or else its children; or the units that fsdp is told to shard.",
        flag="--checkpoint/--no-checkpoint",
    )
    check: bool = option(True, "Verify against a single device before measuring.", flag="--check/--no-check")
    track: bool = option(True, "Deliver the run to MLflow.", flag="--track/--no-track")
    track_timeout: float = option(
        10.0, "Seconds without progress after which a run no longer waits for its delivery.", min=0.0, max=1e6
    )
    experiment: str = option("dpexp", "MLflow experiment.", is_name=True)
    run_name: str = option("", "Name of the run. Default: strategy, model and devices.", is_name=True)
    options: StrategyOptions = dataclasses.field(default_factory=dict)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, str) or self.strategy not in STRATEGY_OPTIONS:
            raise unknown("strategy", self.strategy, STRATEGY_OPTIONS)
        object.__setattr__(self, "options", self._strategy_options())
        if not self.model:
            object.__setattr__(self, "model", STRATEGY_OPTIONS[self.strategy].default_model)
        validate(self)
        if self.virtual is not None and self.devices != "auto":
            raise ConfigError(
                f"--virtual {self.virtual} emulates devices and --devices {self.devices} names real ones: "
                "give one of the two"
            )
        if self.checkpoint and self.eval:
            raise ConfigError("--checkpoint is about backward, and --eval has none: give one of the two")
        if self.checkpoint and not self.options.checkpoints:
            raise ConfigError(
                f"--checkpoint: a layout of {self.strategy} checkpoints by itself, in its function or "
                "model, by torch.utils.checkpoint"
            )

    def _strategy_options(self) -> StrategyOptions:
        wanted, options = STRATEGY_OPTIONS[self.strategy], self.options
        if isinstance(options, Mapping):
            known = {field.name for field in option_fields(wanted)}
            for key in options:
                if key not in known:
                    raise unknown(f"option of {self.strategy}", key, option_names(self.strategy))
            return wanted(**options)
        if type(options) is not wanted:
            raise ConfigError(
                f"options of {self.strategy} are a {wanted.__name__}, not a {type(options).__name__}"
            )
        return options

    def to_dict(self) -> dict[str, Any]:
        """Flat and JSON-ready: the options of the strategy stand beside the others."""
        parts = (self, self.options)
        fields = [(part, field.name) for part in parts for field in option_fields(type(part))]
        return {"strategy": self.strategy} | {name: to_json(getattr(part, name)) for part, name in fields}

    @classmethod
    def from_dict(cls, flat: Mapping[str, Any], where: str = "config") -> RunConfig:
        """The inverse of ``to_dict``. Raises ConfigError that begins with ``where``, unless that is empty."""
        names = {"strategy", *(field.name for field in option_fields(cls))}
        values = {"strategy": ""} | {key: value for key, value in flat.items() if key in names}
        options: Any = {key: value for key, value in flat.items() if key not in names}
        try:
            return cls(**values, options=options)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}" if where else str(error)) from error

    def digest(self) -> str:
        """SHA-256 of ``to_dict``: see ``config_digest``."""
        return config_digest(self.to_dict())


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a config."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def known_options(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a Record without the options that this dpexp does not have."""
    strategy = recorded.get("strategy")
    if strategy not in STRATEGY_OPTIONS:
        return dict(recorded)
    known = {"strategy", *option_names(strategy)}
    return {name: value for name, value in recorded.items() if name in known}


def option_names(strategy: str) -> list[str]:
    """The names of all options of a strategy."""
    return [field.name for cls in (RunConfig, STRATEGY_OPTIONS[strategy]) for field in option_fields(cls)]
