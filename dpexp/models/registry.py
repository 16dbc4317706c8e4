"""The models that ``--model`` names, and how one is built. Importing this imports no torch."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from dpexp.config.errors import ConfigError, describe
from dpexp.config.factories import Entry, Factory, Option, Registry
from dpexp.config.features import Features

if TYPE_CHECKING:
    from torch import nn


def _model(factory: str, help: str, *options: Option) -> Entry:
    return Entry(help, f"dpexp.models.{factory}", options)


_STEPS = (
    Option("vocabulary", int, 0, "Ids are below it; 0 where steps are values.", feature="vocabulary", min=0),
    Option("length", int, 12, "Steps of the longest sequence.", feature="length"),
    Option("out", int, 4, "Classes.", feature="outputs"),
    Option("stepwise", bool, True, "Logits for each step, or only one.", feature="stepwise", min=None),
)

_ENTRIES = {
    "linear": _model(
        "linear:Linear",
        "One linear layer.",
        Option("in", int, 5, "Input width.", feature="width"),
        Option("out", int, 2, "Output width.", feature="outputs"),
    ),
    "blocks": _model(
        "linear:Blocks",
        "Three linear blocks: block1, block2, block3.",
        Option("in", int, 10, "Input width.", feature="width"),
        Option("hidden", int, 20, "Width between the blocks."),
        Option("out", int, 20, "Output width.", feature="outputs"),
    ),
    "embedding": _model(
        "embeddings:EmbeddingLinear",
        "An embedding table and a linear layer.",
        Option("rows", int, 1000, "Rows of the table: ids are below it.", feature="vocabulary"),
        Option("dim", int, 10, "Width of a row."),
        Option("out", int, 10, "Output width.", feature="outputs"),
    ),
    "cnn": _model(
        "images:CNN",
        "A small convolutional network for images.",
        Option("channels", int, 1, "Channels of an image.", feature="channels"),
        Option("size", int, 8, "Height and width of an image in pixels.", feature="size", min=4),
        Option("width", int, 16, "Channels after the first convolution; twice as many after the second."),
        Option("out", int, 10, "Classes.", feature="outputs"),
    ),
    "mlp": _model(
        "linear:MLP",
        "A multi-layer perceptron.",
        Option("in", int, 16, "Input width.", feature="width"),
        Option("hidden", int, 64, "Width of the hidden layers."),
        Option("depth", int, 2, "Hidden layers."),
        Option("out", int, 10, "Classes.", feature="outputs"),
    ),
    "rnn": _model(
        "sequences:RNN",
        "An LSTM over sequences of different lengths.",
        Option("in", int, 8, "Width of a step, or of an embedded id.", feature="step_width"),
        Option("hidden", int, 32, "Width of the state."),
        *_STEPS,
    ),
    "capsnet": _model(
        "images:CapsNet",
        "Capsules with dynamic routing and margin loss, for images.",
        Option("channels", int, 1, "Channels of an image.", feature="channels"),
        Option("size", int, 8, "Height and width of an image in pixels.", feature="size", min=2),
        Option("width", int, 32, "Channels of the first convolution."),
        Option("capsules", int, 8, "Primary capsules at each place."),
        Option("routing", int, 3, "Rounds of routing."),
        Option("out", int, 10, "Classes.", feature="outputs"),
    ),
    "transformer": _model(
        "sequences:Transformer",
        "A small encoder with self-attention.",
        Option("in", int, 8, "Width of a step, where steps are values.", feature="step_width"),
        Option("dim", int, 32, "Width of the states."),
        Option("heads", int, 4, "Heads of the attention; they divide dim."),
        Option("depth", int, 2, "Layers."),
        *_STEPS,
    ),
    "dlrm": _model(
        "embeddings:DLRM",
        "Embedding tables and dense features: the prediction of clicks.",
        Option("dense", int, 13, "Dense features.", feature="width"),
        Option("tables", int, 8, "Embedding tables.", feature="tables"),
        Option("rows", int, 1000, "Rows of each table: ids are below it.", feature="vocabulary"),
        Option("dim", int, 16, "Width of a row."),
        Option("hidden", int, 64, "Width of the hidden layers."),
        Option("fused", bool, True, "All tables in one parameter, or each in its own.", min=None),
    ),
}

MODELS = Registry("--model", "model", _ENTRIES)


def build(factory: Factory, features: Features | None = None) -> nn.Module:
    """The model on the CPU in float32; the same weights for the same ``torch.manual_seed`` before it.

    Options that are not given come from ``features`` where these decide them, else from the defaults. A
    user's factory gets the features if it has a parameter ``data_features``. Raises ConfigError for a
    factory that cannot be imported, takes no such option, raises, or returns no ``nn.Module``. A module in
    the place of a factory is copied.
    """
    from torch import nn

    if factory.name:
        options = _default_options(MODELS[factory.name], features) | dict(factory.options)
        factory = replace(factory, options=options)
    found = factory.load()
    if isinstance(found, nn.Module):
        return _copy(found, factory)
    model = factory.call(found, {"data_features": features})
    if not isinstance(model, nn.Module):
        kind = f"the class {model.__name__} (call it)" if isinstance(model, type) else type(model).__name__
        raise ConfigError(f"{factory.where}: {factory.target} returned {kind}, not a torch.nn.Module")
    return model


def _copy(model: nn.Module, factory: Factory) -> nn.Module:
    """A copy on the CPU of a module that a file or program has: a run must not change it."""
    factory.check_no_options(model)
    try:
        copied = copy.deepcopy(model).cpu()
    except Exception as error:
        raise ConfigError(
            f"{factory.where}: the module cannot be copied ({describe(error)}), and a run must not change "
            "it: give a function that makes it"
        ) from error
    copied.zero_grad()
    return copied


def _default_options(entry: Entry, features: Features | None) -> dict[str, object]:
    """Every option of the entry: what the features decide, else the default."""
    values = {}
    for option in entry.options:
        decided = getattr(features, option.feature) if features is not None and option.feature else None
        values[option.name] = option.default if decided is None else decided
    return values
