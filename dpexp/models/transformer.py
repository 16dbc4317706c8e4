"""Transformer: a small encoder with self-attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpexp.config import ConfigError
from dpexp.models import steps


class Transformer(nn.Module):
    """Sequences ``(batch, length, in)``, or ids ``(batch, length)`` with a vocabulary -> logits.

    ``forward(sequences, lengths)``: ``lengths`` ``(batch,)`` are integers from 1 to length; without
    them every sequence is full. The logits are ``(batch, length, out)`` if ``stepwise``: then a step
    sees itself and those before it only, as next-byte prediction needs. Else they are ``(batch, out)``, from
    the mean over a sequence whose steps see each other.

    ::

        embedding -> encoder: position + depth x (attention, feed-forward), norm -> head

    ``embedding`` is a table for ids and a linear layer for values. There is no dropout, so that every
    layout of it computes the same thing, in training too.

    Source: Vaswani et al., "Attention is all you need", 2017; normalization before each part as in
    Xiong et al., "On layer normalization in the transformer architecture", 2020.
    """

    def __init__(
        self,
        in_: int,
        vocabulary: int,
        length: int,
        dim: int,
        heads: int,
        depth: int,
        out: int,
        stepwise: bool,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ConfigError(f"dim={dim} cannot be split among heads={heads}: choose a multiple")
        self.input_kind = "ids" if vocabulary else "sequence"
        self.width, self.vocabulary, self.length, self.stepwise = in_, vocabulary, length, stepwise
        self.embedding: nn.Module = nn.Embedding(vocabulary, dim) if vocabulary else nn.Linear(in_, dim)
        self.encoder = Encoder(length, dim, heads, depth, causal=stepwise)
        self.head = nn.Linear(dim, out)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        if sequences.shape[1] > self.length:
            raise ValueError(
                f"sequences of {sequences.shape[1]} steps, but positions for {self.length}: "
                f"length={sequences.shape[1]}"
            )
        states = self.encoder(self.embedding(sequences), lengths)
        logits: Tensor = self.head(states if self.stepwise else steps.mean_inside(states, lengths))
        return logits

    def example(self, samples: int, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Random sequences of different lengths, and random classes."""
        out = self.head.out_features
        return steps.example(samples, self.length, self.width, self.vocabulary, out, self.stepwise, generator)


class Encoder(nn.Module):
    """States ``(batch, length, dim)`` and lengths ``(batch,)`` -> states of the same shape.

    The masks are made in here, so that this part can be replicated by itself: a mask has no batch
    dimension to split.
    """

    def __init__(self, length: int, dim: int, heads: int, depth: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.position = nn.Parameter(torch.randn(length, dim))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        length = states.shape[1]
        mask = padding = None
        if self.causal:  # what lies behind the end of a sequence is later than all of it: no step sees it
            mask = torch.ones(length, length, dtype=torch.bool, device=states.device).triu(1)
        elif lengths is not None:
            padding = ~steps.inside(lengths, length)
        states = states + self.position[:length]
        for layer in self.layers:
            states = layer(states, src_mask=mask, src_key_padding_mask=padding, is_causal=self.causal)
        encoded: Tensor = self.norm(states)
        return encoded
