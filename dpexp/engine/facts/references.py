r"""References: what the options of a config name: code and files; and how a Record shows it.

config --> factories --> the model, the data, the loss and the optimizer of a run
               \--> references --> its config without secrets, its files (``files.py``), a list in words
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpexp import live
from dpexp.config.factories.factory import Factory
from dpexp.config.options import flag_name, spec_options
from dpexp.config.run_config import RunConfig
from dpexp.data.registry import LOSSES, METRICS, SOURCES, VALIDATION_SOURCES
from dpexp.models.registry import MODELS
from dpexp.training.optimizer_names import OPTIMIZERS


def factories(config: RunConfig) -> dict[str, Factory]:
    """What the Specs of a config name, by option: found in the registries, not imported.

    Raises ConfigError as ``Registry.find``.
    """
    given = {"loss": LOSSES, "metrics": METRICS, "validation": VALIDATION_SOURCES}
    return {
        "data": SOURCES.find(config.data),
        **{name: known.find(spec) for name, known in given.items() if (spec := getattr(config, name))},
        "model": MODELS.find(config.model),
        "optimizer": OPTIMIZERS.find(config.optimizer),
        **config.options.factories,
    }


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
        return not self.factory.name or self.factory.argument is not None

    @property
    def is_live(self) -> bool:
        """Whether it is an object of this process."""
        return self.text.startswith(live.PREFIX)

    @property
    def paths(self) -> tuple[str, ...]:
        """The file or folder as the user wrote it, or where a module of the working directory may be."""
        if not self.is_outside or self.is_live:
            return ()
        if self.factory.argument:
            return (self.factory.argument,)
        if self.factory.module.endswith(".py"):
            return (self.factory.module,)
        path = self.factory.module.replace(".", "/")
        return (f"{path}.py", f"{path}/__init__.py")

    def __str__(self) -> str:
        """What a run would do with it."""
        option = f"{self.flag} {self.text}"
        if self.factory.argument:
            return f"{option} reads {self.factory.argument}"
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.factory.options.items())
        return f"{option} imports {self.factory.module} and calls {self.factory.attribute}({arguments})"


def references(config: RunConfig, found: Mapping[str, Factory] | None = None) -> list[Reference]:
    """All that the options name, with the ``factories`` of the config where these are known.

    Imports nothing of it. Raises ConfigError as ``factories``.
    """
    found = factories(config) if found is None else found
    return [
        Reference(name, spec.text, found[name])
        for part in (config, config.options)
        for name in spec_options(type(part))
        if (spec := getattr(part, name))
    ]
