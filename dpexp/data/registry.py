"""The data sources and losses that ``--data`` and ``--loss`` name. Importing this imports no torch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dpexp.config.factories import Aliases, Factory

if TYPE_CHECKING:
    from dpexp.data.sources import Source

SOURCES: Aliases = {
    "random": "dpexp.data.sources:RandomSource",
    "digits": "dpexp.data.sources:DigitsSource",
    "text": "dpexp.data.sources:TextSource",
}
LOSSES: Aliases = {
    "mse": "torch.nn.functional:mse_loss",
    "l1": "torch.nn.functional:l1_loss",
    "huber": "torch.nn.functional:huber_loss",
    "cross_entropy": "torch.nn.functional:cross_entropy",
}


def source(factory: Factory, loss: Factory | None = None, reduction: str = "") -> Source:
    """The source that ``--data`` names, and the loss that ``--loss`` names, loaded and checked.

    ``reduction`` is that of the loss; it is given to a loss of ``LOSSES``.

    Raises ConfigError for a user's data or loss that cannot be imported, and for a file that is
    missing, empty or of another format.
    """
    if factory.name:
        made: Source = factory.call(factory.load(), {"where": factory.where})
    else:
        from dpexp.data.user_data import UserSource

        made = UserSource(factory)
    if loss is not None:
        made.loss = loss.bound(loss.load(), 2)
        if loss.name and reduction == "sum":
            made.loss = functools.partial(made.loss, reduction="sum")
    made.reduction = reduction
    return made
