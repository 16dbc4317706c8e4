"""RunConfig: everything that decides what one run does, frozen and validated.

The command line, the ``DPEXP_*`` environment, config files and MLflow params are all made from the
fields below, so an option has its name, type, default and help in one place. A strategy's own
options live in its options class; ``STRATEGY_OPTIONS`` names them.

Nothing here imports torch: ``--help`` is built from this module.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import ConfigError, unknown
from dpexp.config.options import option, option_fields, plain, typed_value, validate
from dpexp.config.strategy_options import STRATEGY_OPTIONS, StrategyOptions, build_options

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
            options = build_options(wanted, options, f"options of {self.strategy}")
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
                validate(holder, field)
        if self.virtual is not None and self.devices != "auto":
            raise ConfigError(
                f"--virtual {self.virtual} emulates devices and --devices {self.devices} names real ones: "
                "give one of the two"
            )

    def to_dict(self) -> dict[str, Any]:
        """Flat and JSON-ready: the strategy's options stand beside the others."""
        flat = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "options"}
        flat |= {f.name: plain(getattr(self.options, f.name)) for f in option_fields(type(self.options))}
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
        rest = {key: typed_value(cls, key, value, where) for key, value in flat.items() if key not in own}
        return cls(**rest, options=build_options(STRATEGY_OPTIONS[strategy], options, where))

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of ``to_dict``."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def option_names(strategy: str) -> list[str]:
    """The names of every option that a strategy takes."""
    return [f.name for cls in (RunConfig, STRATEGY_OPTIONS[strategy]) for f in option_fields(cls)]
