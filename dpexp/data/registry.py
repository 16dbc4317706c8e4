"""The data sources and losses that ``--data`` and ``--loss`` name. Importing this imports no torch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dpexp.config.factories import Entry, Factory, Option, Registry

if TYPE_CHECKING:
    from dpexp.data.base import Source

_SOURCES = {
    "random": Entry(
        "Random numbers of the kind that the model takes.",
        "dpexp.data.random_samples:RandomSource",
        (
            Option("samples", int, 100, "Samples in an epoch."),
            Option("shape", str, "", "Shape of a sample, as 5 or 3x32x32. Default: what the model takes."),
        ),
    ),
    "digits": Entry(
        "The 8 x 8 images of handwritten digits that scikit-learn ships: 1437 to train, 360 to test.",
        "dpexp.data.digits:DigitsSource",
    ),
    "text": Entry(
        "The bytes of a file, or of a folder's text files, as ids; the target is the next byte.",
        "dpexp.data.text:TextSource",
        (Option("length", int, 32, "Bytes in a sample."),),
        argument="PATH",
    ),
    "sequences": Entry(
        "Sequences of different lengths; each step has a class that depends on those before it.",
        "dpexp.data.synthetic:SequencesSource",
        (
            Option("samples", int, 1000, "Sequences in an epoch; a fifth as many are held out."),
            Option("length", int, 20, "Steps of the longest sequence."),
            Option("width", int, 8, "Values of a step."),
            Option("classes", int, 4, "Classes of a step."),
        ),
    ),
    "clicks": Entry(
        "Dense features and ids drawn from a power law; clicks of a ground-truth model.",
        "dpexp.data.synthetic:ClicksSource",
        (
            Option("samples", int, 10000, "Samples in an epoch; a fifth as many are held out."),
            Option("dense", int, 13, "Dense features."),
            Option("tables", int, 8, "Ids of a sample, one for each table."),
            Option("rows", int, 1000, "Rows of a table: ids are below it."),
            Option("skew", float, 1.1, "Exponent of the power law; 0 draws all ids alike.", min=0),
        ),
    ),
}

SOURCES = Registry("--data", "data source", _SOURCES)
VALIDATION_SOURCES = Registry("--validation", "data source", _SOURCES)
METRICS = Registry("--metrics", "metrics", {})

_LOSSES = {
    "mse": Entry("Mean squared error.", "torch.nn.functional:mse_loss"),
    "l1": Entry("Mean absolute error.", "torch.nn.functional:l1_loss"),
    "huber": Entry(
        "Squared near zero, absolute beyond delta.",
        "torch.nn.functional:huber_loss",
        (Option("delta", float, 1.0, "The error beyond which it is absolute.", min=0),),
    ),
    "cross_entropy": Entry(
        "Cross entropy of logits with classes.",
        "torch.nn.functional:cross_entropy",
        (Option("label_smoothing", float, 0.0, "Fraction of the target given to all classes.", min=0),),
    ),
}

LOSSES = Registry("--loss", "loss", _LOSSES)


def source(factory: Factory, loss: Factory | None = None, reduction: str = "") -> Source:
    """The source that ``--data`` names, and the loss that ``--loss`` names, loaded and checked.

    ``reduction`` is that of the loss; it is given to a loss of ``LOSSES``.

    Raises ConfigError for a user's data or loss that cannot be imported, and for a file or folder that is
    missing, empty or of another format.
    """
    if factory.name:
        argument = {} if factory.argument is None else {"argument": factory.argument}
        found: Source = factory.load()(where=factory.where, **factory.all_options, **argument)
    else:
        from dpexp.data.user_data import UserSource

        found = UserSource(factory)
    if loss is not None:
        options = {**loss.options, **({"reduction": "sum"} if loss.name and reduction == "sum" else {})}
        found.loss = functools.partial(loss.load(), **options) if options else loss.load()
    found.reduction = reduction
    return found
