"""Models: device-blind ``nn.Module`` classes, one file each, and the registry of their names.

A model knows no device and no strategy. It is called with its inputs as positional arguments, the
batch in dimension 0 of every tensor. A class of your own needs nothing more than that; it may say
more about itself, and then more works:

=============================================  ====================================================
``input_kind``                                 the kind of input that it takes (see ``Features``), so
                                               that a data source can shape its samples to fit
``example(samples, generator)``                ``(inputs, targets)`` with so many rows, for
                                               ``--data random``; inputs is a tensor or a tuple
``loss(outputs, targets)``                     a scalar, the mean over rows, computed from nothing
                                               but the two; otherwise mean squared error for
                                               floating-point targets and cross entropy for integers
``accuracy(outputs, targets)``                 a float; otherwise, for integer targets, how often the
                                               largest output is the target
=============================================  ====================================================

Importing this package imports no torch; ``build`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpexp.config import ConfigError, spec
from dpexp.config.features import Features
from dpexp.config.spec import Entry as ModelEntry
from dpexp.config.spec import Option
from dpexp.config.spec import Spec as ModelSpec

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "ModelEntry", "ModelSpec", "build", "parse"]

_STEPS = (
    Option("vocabulary", int, 0, "Ids are below it; 0 where steps are values.", fits="vocabulary", min=0),
    Option("length", int, 12, "Steps of the longest sequence.", fits="length"),
    Option("out", int, 4, "Classes.", fits="outputs"),
    Option(
        "stepwise", bool, True, "Logits at each step, or one for the sequence.", fits="stepwise", min=None
    ),
)

MODELS: dict[str, ModelEntry] = {
    "linear": ModelEntry(
        "One linear layer.",
        "dpexp.models.linear:Linear",
        (
            Option("in", int, 5, "Input width.", fits="width"),
            Option("out", int, 2, "Output width.", fits="outputs"),
        ),
    ),
    "blocks": ModelEntry(
        "Three linear blocks: block1, block2, block3.",
        "dpexp.models.blocks:Blocks",
        (
            Option("in", int, 10, "Input width.", fits="width"),
            Option("hidden", int, 20, "Width between the blocks."),
            Option("out", int, 20, "Output width.", fits="outputs"),
        ),
    ),
    "embedding": ModelEntry(
        "An embedding table and a linear layer.",
        "dpexp.models.embedding:EmbeddingLinear",
        (
            Option("rows", int, 1000, "Rows of the table: ids are below it.", fits="vocabulary"),
            Option("dim", int, 10, "Width of a row."),
            Option("out", int, 10, "Output width.", fits="outputs"),
        ),
    ),
    "cnn": ModelEntry(
        "A small convolutional network for images.",
        "dpexp.models.cnn:CNN",
        (
            Option("channels", int, 1, "Channels of an image.", fits="channels"),
            Option("size", int, 8, "Height and width of an image in pixels.", fits="size", min=4),
            Option("width", int, 16, "Channels after the first convolution; twice as many after the second."),
            Option("out", int, 10, "Classes.", fits="outputs"),
        ),
    ),
    "mlp": ModelEntry(
        "A multi-layer perceptron.",
        "dpexp.models.mlp:MLP",
        (
            Option("in", int, 16, "Input width.", fits="width"),
            Option("hidden", int, 64, "Width of the hidden layers."),
            Option("depth", int, 2, "Hidden layers."),
            Option("out", int, 10, "Classes.", fits="outputs"),
        ),
    ),
    "rnn": ModelEntry(
        "An LSTM over sequences of different lengths.",
        "dpexp.models.rnn:RNN",
        (
            Option("in", int, 8, "Width of a step, or of an embedded id.", fits="step_width"),
            Option("hidden", int, 32, "Width of the state."),
            *_STEPS,
        ),
    ),
    "capsnet": ModelEntry(
        "Capsules with dynamic routing and margin loss, for images.",
        "dpexp.models.capsnet:CapsNet",
        (
            Option("channels", int, 1, "Channels of an image.", fits="channels"),
            Option("size", int, 8, "Height and width of an image in pixels.", fits="size", min=2),
            Option("width", int, 32, "Channels of the first convolution."),
            Option("capsules", int, 8, "Primary capsules at each place."),
            Option("routing", int, 3, "Rounds of routing."),
            Option("out", int, 10, "Classes.", fits="outputs"),
        ),
    ),
    "transformer": ModelEntry(
        "A small encoder with self-attention.",
        "dpexp.models.transformer:Transformer",
        (
            Option("in", int, 8, "Width of a step, where steps are values.", fits="step_width"),
            Option("dim", int, 32, "Width of the states."),
            Option("heads", int, 4, "Heads of the attention; they divide dim."),
            Option("depth", int, 2, "Layers."),
            *_STEPS,
        ),
    ),
    "dlrm": ModelEntry(
        "Embedding tables and dense features: the prediction of clicks.",
        "dpexp.models.dlrm:DLRM",
        (
            Option("dense", int, 13, "Dense features.", fits="width"),
            Option("tables", int, 8, "Embedding tables.", fits="tables"),
            Option("rows", int, 1000, "Rows of each table: ids are below it.", fits="vocabulary"),
            Option("dim", int, 16, "Width of a row."),
            Option("hidden", int, 64, "Width of the hidden layers."),
        ),
    ),
}


def parse(text: str) -> ModelSpec:
    """The model that ``--model`` names, with the options given; imports neither torch nor the factory.

    Raises ConfigError for an unknown model or option, a wrong value and a file that is not there.
    """
    return spec.parse(text, MODELS, "--model", "model")


def build(text: str, features: Features | None = None) -> nn.Module:
    """The model on the CPU in float32; the same weights for the same ``torch.manual_seed`` before it.

    Options that the text gives stand. The others of a registered model are fitted to ``features``
    where these decide them, and have their defaults otherwise; a factory of one's own gets
    them when it has a parameter ``data_features``. Raises ConfigError when the factory cannot be
    found, takes no such option, raises, or returns no ``nn.Module``.
    """
    from torch import nn

    parsed = parse(text)
    where = f"--model {parsed.text}"
    if parsed.name:
        options = fitted(MODELS[parsed.name], features) | dict(parsed.options)
        parsed = ModelSpec(parsed.text, parsed.name, parsed.factory, options)
    model = spec.call(spec.load(parsed, where), parsed, where, {"data_features": features})
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{where}: {parsed.factory} returned {_a(model)}, not a torch.nn.Module")
    return model


def fitted(entry: ModelEntry, features: Features | None) -> dict[str, object]:
    """Every option of the entry: what the features decide, else the default."""
    values = {}
    for option in entry.options:
        known = getattr(features, option.fits) if features is not None and option.fits else None
        values[option.name] = option.default if known is None else known
    return values


def _a(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} (call it)"
    return "None" if value is None else f"a {type(value).__name__}"
