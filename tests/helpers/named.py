"""Models and data sources by the text that ``--model``, ``--data`` and ``--loss`` take."""

from torch import nn

from dpexp.config.features import Features
from dpexp.config.spec import Spec
from dpexp.data import registry as data
from dpexp.data.base import Source
from dpexp.models import registry as models


def build(text: str, features: Features | None = None) -> nn.Module:
    """The model: see ``dpexp.models.registry.build``."""
    return models.build(models.MODELS.find(Spec(text)), features)


def source(text: str, loss: str = "", reduction: str = "") -> Source:
    """The data source: see ``dpexp.data.registry.source``."""
    named_loss = data.LOSSES.find(Spec(loss)) if loss else None
    return data.source(data.SOURCES.find(Spec(text)), named_loss, reduction)
