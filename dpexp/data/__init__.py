"""Data: seeded batches from random numbers, images, text, arrays, planted rules, or a dataset of one's own.

``source(text)`` is what ``--data`` names: it finds and checks, and says in ``features`` what the samples
are, so that a model can be fitted to them. ``Source.dataset(model, seed)`` then gives the samples as
that model takes them, with the loss that goes with both. Importing this package imports no torch.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dpexp.config import spec
from dpexp.config.features import Features
from dpexp.config.spec import Entry, Option

if TYPE_CHECKING:
    from dpexp.data.base import Source
    from dpexp.data.dataset import Batch, Dataset

__all__ = ["LOSSES", "SOURCES", "Batch", "Dataset", "Features", "Source", "source"]

SOURCES: dict[str, Entry] = {
    "random": Entry(
        "Random numbers of the kind that the model takes.",
        "dpexp.data.random:RandomSource",
        (Option("samples", int, 100, "Samples in an epoch."),),
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
    "arrays": Entry(
        "x and y of a NumPy archive.",
        "dpexp.data.arrays:ArraysSource",
        argument="FILE.npz",
    ),
    "sequences": Entry(
        "Sequences of different lengths, a class at each step by a planted rule.",
        "dpexp.data.sequences:SequencesSource",
        (
            Option("samples", int, 1000, "Sequences in an epoch; a fifth as many are held out."),
            Option("length", int, 20, "Steps of the longest sequence."),
            Option("width", int, 8, "Values of a step."),
            Option("classes", int, 4, "Classes of a step."),
        ),
    ),
    "clicks": Entry(
        "Dense features and ids drawn from a power law, clicks from a planted model.",
        "dpexp.data.clicks:ClicksSource",
        (
            Option("samples", int, 10000, "Samples in an epoch; a fifth as many are held out."),
            Option("dense", int, 13, "Dense features."),
            Option("tables", int, 8, "Ids of a sample, one for each table."),
            Option("rows", int, 1000, "Rows of a table: ids are below it."),
            Option("skew", float, 1.1, "Exponent of the power law; 0 draws all ids alike.", min=0),
        ),
    ),
}


LOSSES: dict[str, Entry] = {
    "mse": Entry("Mean squared error.", "torch.nn.functional:mse_loss"),
    "l1": Entry("Mean absolute error.", "torch.nn.functional:l1_loss"),
    "huber": Entry(
        "Squared near zero, absolute beyond delta.",
        "torch.nn.functional:huber_loss",
        (Option("delta", float, 1.0, "Where the absolute part begins.", min=0),),
    ),
    "cross_entropy": Entry(
        "Cross entropy of logits with classes.",
        "torch.nn.functional:cross_entropy",
        (Option("label_smoothing", float, 0.0, "Share of the target given to all classes.", min=0),),
    ),
}


def source(text: str, loss: str = "") -> Source:
    """The source that ``--data`` names, found and checked; ``loss`` is what ``--loss`` names.

    Raises ConfigError for an unknown source, loss or option, and for a file or folder that is
    missing, empty or not what it should be.
    """
    found = _source(text)
    if loss:
        parsed = spec.parse(loss, LOSSES, "--loss", "loss")
        function = spec.load(parsed, f"--loss {parsed.text}")
        found.loss = functools.partial(function, **parsed.options)
    return found


def _source(text: str) -> Source:
    parsed = spec.parse(text, SOURCES, "--data", "data source")
    where = f"--data {parsed.text}"
    if not parsed.name:
        from dpexp.data.user_data import UserSource

        return UserSource(parsed, where)
    entry = SOURCES[parsed.name]
    options = {option.name: option.default for option in entry.options} | dict(parsed.options)
    argument = {} if parsed.argument is None else {"argument": parsed.argument}
    found: Source = spec.load(parsed, where)(where=where, **argument, **options)
    return found


def __getattr__(name: str) -> Any:
    """``dpexp.data.Dataset``, ``Batch`` and ``Source`` on first use: they need torch."""
    if name in ("Batch", "Dataset"):
        from dpexp.data import dataset

        return getattr(dataset, name)
    if name == "Source":
        from dpexp.data.base import Source

        return Source
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
