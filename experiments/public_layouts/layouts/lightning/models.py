"""A small transformer, with the dense layers and tokens of language models."""

from experiments.public_layouts.transformer import loss, transformer

__all__ = ["loss", "transformer"]

OPTIONS = {"loss": "models.py:loss"}
