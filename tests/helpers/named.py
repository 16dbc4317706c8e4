"""Models and data sources by the text that ``--model``, ``--data`` and ``--loss`` take."""

from torch import nn

from dpexp.config.factories import find
from dpexp.config.features import Features
from dpexp.data import registry as data
from dpexp.data.sources import Source
from dpexp.models import registry as models


def build(text: str, features: Features | None = None) -> nn.Module:
    """The model: see ``dpexp.models.registry.build``."""
    return models.build(find("--model", text, models.MODELS), features)


def source(text: str, loss: str = "", reduction: str = "") -> Source:
    """The data source: see ``dpexp.data.registry.source``."""
    named_loss = find("--loss", loss, data.LOSSES) if loss else None
    return data.source(find("--data", text, data.SOURCES), named_loss, reduction)
