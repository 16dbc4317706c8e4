r"""References: what the options of a config name: code and files; and how a Record shows it.

config --> factories --> the model, the data, the loss and the optimizer of a run
               \--> references --> its config without secrets, its files (``files.py``), a list in words

Inventory: the submodules of a model, with the names that --block, --host and --place take.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from dpexp import live
from dpexp.config.factories import Aliases, Factory, find
from dpexp.config.options import flag_name
from dpexp.config.run_config import RunConfig
from dpexp.data.registry import LOSSES, SOURCES
from dpexp.models.registry import MODELS
from dpexp.record.record import Row
from dpexp.training.optimizers import OPTIMIZERS

ALIASES: Mapping[str, Aliases] = {
    "model": MODELS,
    "data": SOURCES,
    "loss": LOSSES,
    "metrics": {},
    "validation": SOURCES,
    "optimizer": OPTIMIZERS,
}
"""The options of every strategy that name code, and the names that each knows."""


def factories(config: RunConfig) -> dict[str, Factory]:
    """What the options of a config name, by option; nothing is imported. Raises ConfigError as ``find``."""
    given = {name: getattr(config, name) for name in ALIASES}
    found = {name: find(flag_name(name), text, ALIASES[name]) for name, text in given.items() if text}
    return found | config.options.factories


@dataclass(frozen=True)
class Reference:
    """What an option names."""

    option: str
    text: str
    factory: Factory

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return flag_name(self.option)

    @property
    def is_outside(self) -> bool:
        """Whether it is not part of dpexp."""
        return not self.factory.name or "path" in self.factory.options

    @property
    def is_live(self) -> bool:
        """Whether it is an object of this process."""
        return self.text.startswith(live.PREFIX)

    @property
    def paths(self) -> tuple[str, ...]:
        """The file or folder as the user wrote it, or where a module of the working directory may be."""
        if not self.is_outside or self.is_live:
            return ()
        if self.factory.name:
            return (str(self.factory.options["path"]),)
        if self.factory.module.endswith(".py"):
            return (self.factory.module,)
        path = self.factory.module.replace(".", "/")
        return (f"{path}.py", f"{path}/__init__.py")

    def __str__(self) -> str:
        """What a run would do with it."""
        option = f"{self.flag} {self.text}"
        if self.factory.name:
            return f"{option} reads {self.factory.options['path']}"
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.factory.options.items())
        return f"{option} imports {self.factory.module} and calls {self.factory.attribute}({arguments})"


def references(config: RunConfig, found: Mapping[str, Factory] | None = None) -> list[Reference]:
    """All that the options name, with the ``factories`` of the config where these are known.

    Imports nothing of it. Raises ConfigError as ``factories``.
    """
    found = factories(config) if found is None else found
    parts = (config, config.options)
    texts = {name: getattr(part, name) for part in parts for name in found if hasattr(part, name)}
    return [Reference(name, texts[name], factory) for name, factory in found.items()]


def registry() -> list[Row]:
    """A row for each model that has a name: ``model``, ``help``, and its options with default and help."""
    rows = []
    for name in MODELS:
        made = find("--model", name, MODELS).load()
        decided = {option: f"From the data: {of.replace('_', ' ')}." for option, of in made.from_data}
        options = [
            {"option": option, "default": parameter.default, "help": decided.get(option, "")}
            for key, parameter in inspect.signature(made).parameters.items()
            for option in [key.rstrip("_")]
        ]
        help = str(inspect.getdoc(made)).partition("\n")[0].replace("``", "")
        rows.append({"model": name, "help": help, "options": options})
    return rows


def inventory(model: str, data: str) -> Row:
    """Run one batch of ``data`` through ``model`` on the host. Raises ConfigError as a run does.

    Returns model, data, rows of the batch, parameters, bytes, and a row for each of ``modules``, in the order
    of their definition: module, type, parameters (how many numbers) and bytes (of parameters and buffers)
    including its children, calls in one batch, inputs and outputs (lists of shapes) of the first call. A
    module without calls cannot be wrapped.
    """
    from dpexp.engine.model_check import misfit_as_config_error
    from dpexp.engine.prepare import prepare
    from dpexp.measurement.observe import device_map, observe
    from dpexp.timing import Timer

    # Forward only and unverified, so that the model need not be trainable or copyable
    config = RunConfig("single", model=model, data=data, devices="cpu", eval=True, check=False)
    prepared = prepare(config, one_batch=False)  # it would also need a loss
    placed = prepared.strategy.place(prepared.model, (), Timer())
    batch = next(prepared.batches(0))
    with misfit_as_config_error(prepared.model):
        calls = observe(placed, [batch], prepared.data.objective.loss)
    tensors = device_map(placed)  # after the first batch, which lazy parameters wait for
    modules = [
        _row(name, type(module).__name__, tensors, calls) for name, module in prepared.model.named_modules()
    ]
    total = {key: modules[0][key] for key in ("parameters", "bytes")}
    return {"model": model, "data": data, "rows": batch.rows, **total, "modules": modules}


def _row(name: str, kind: str, tensors: Sequence[Row], calls: Sequence[Row]) -> Row:
    """The row of one module, with the tensors of its children; a tied parameter counts once."""
    inside = [row for row in tensors if not name or f"{row['module']}.".startswith(f"{name}.")]
    of_module = [row for row in calls if row["module"] == name]
    return {
        "module": name,
        "type": kind,
        "parameters": sum(prod(row["shape"]) for row in inside if row["kind"] == "parameter"),
        "bytes": sum(row["bytes"] for row in inside),
        "calls": len(of_module),
        "inputs": of_module[0]["inputs"] if of_module else [],
        "outputs": of_module[0]["outputs"] if of_module else [],
    }
