"""The models that ``--model`` names, their options, and how one is built. Importing this imports no torch."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING

from dpexp.config.errors import ConfigError
from dpexp.config.factories import Aliases, Factory, find
from dpexp.config.features import Features
from dpexp.record.record import Row

if TYPE_CHECKING:
    from torch import nn

MODELS: Aliases = {
    "linear": "dpexp.models.linear:Linear",
    "blocks": "dpexp.models.linear:Blocks",
    "embedding": "dpexp.models.embeddings:EmbeddingLinear",
    "cnn": "dpexp.models.images:CNN",
    "mlp": "dpexp.models.linear:MLP",
    "rnn": "dpexp.models.sequences:RNN",
    "capsnet": "dpexp.models.images:CapsNet",
    "transformer": "dpexp.models.sequences:Transformer",
    "dlrm": "dpexp.models.embeddings:DLRM",
}
"""Their options are the arguments of the classes."""


def build(factory: Factory, features: Features | None = None) -> nn.Module:
    """The model on the CPU in float32; the same weights for the same ``torch.manual_seed`` before it.

    Options that are not given come from ``features``, as the attribute ``from_data`` of the class says.
    Raises ConfigError for a factory that cannot be imported, takes no such option, raises, or returns no
    ``nn.Module``, or one that ``check_not_scripted`` refuses. A module is copied.
    """
    from torch import nn

    from dpexp.copies import check_not_scripted, copied_module

    loaded = factory.load()
    if isinstance(loaded, nn.Module):  # of a file or a program: a run must not change it
        check_not_scripted(loaded)
        factory.check_no_options(loaded)
        copied = copied_module(loaded).cpu()
        copied.zero_grad()
        return copied
    decided = {option: getattr(features, name, None) for option, name in getattr(loaded, "from_data", ())}
    options = {key: value for key, value in decided.items() if value is not None} | {**factory.options}
    model = replace(factory, options=options).call(loaded)
    if not isinstance(model, nn.Module):
        kind = f"the class {model.__name__} (call it)" if isinstance(model, type) else type(model).__name__
        raise ConfigError(f"{factory.where}: {factory.target} returned {kind}, not a torch.nn.Module")
    check_not_scripted(model)
    return model


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
