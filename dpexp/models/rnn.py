"""RNN: a long short-term memory over sequences of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dpexp.models import steps


class RNN(nn.Module):
    """Sequences ``(batch, length, in)``, or ids ``(batch, length)`` with a vocabulary -> logits.

    ``forward(sequences, lengths)``: ``lengths`` ``(batch,)`` are integers from 1 to length; without
    them every sequence is full. The logits are ``(batch, length, out)`` if ``stepwise``, else ``(batch,
    out)`` from the last step of each sequence.

    ::

        (ids -> embedding ->) pack -> lstm -> pad to the global length -> head

    A replica pads to the length that came in, not to the longest sequence among its own rows:
    otherwise replicas answer with different lengths and cannot be gathered. (PyTorch FAQ, "My recurrent
    network doesn't work with data parallelism".)

    Source: Hochreiter, Schmidhuber, "Long short-term memory", 1997.
    """

    def __init__(self, in_: int, hidden: int, vocabulary: int, length: int, out: int, stepwise: bool) -> None:
        super().__init__()
        self.input_kind = "ids" if vocabulary else "sequence"
        self.width, self.vocabulary, self.length, self.stepwise = in_, vocabulary, length, stepwise
        if vocabulary:
            self.embedding = nn.Embedding(vocabulary, in_)
        self.lstm = PackedLSTM(in_, hidden)
        self.head = nn.Linear(hidden, out)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.vocabulary:
            sequences = self.embedding(sequences)
        states = self.lstm(sequences, lengths)
        if not self.stepwise:
            states = steps.last(states, lengths)
        logits: Tensor = self.head(states)
        return logits

    def example(self, samples: int, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Random sequences of different lengths, and random classes."""
        out = self.head.out_features
        return steps.example(samples, self.length, self.width, self.vocabulary, out, self.stepwise, generator)


class PackedLSTM(nn.Module):
    """``(batch, length, in)`` and lengths ``(batch,)`` -> states ``(batch, length, hidden)``.

    The states behind the end of a sequence are zeros. Packing happens in here, so that this part can
    be replicated by itself: a packed batch cannot be split.
    """

    def __init__(self, in_: int, hidden: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(in_, hidden, batch_first=True)

    def forward(self, sequences: Tensor, lengths: Tensor | None) -> Tensor:
        self.cells.flatten_parameters()  # cuDNN wants in one piece what replicas hold in many
        if lengths is None or type(lengths) is not Tensor:  # fake tensors have no values to pack by
            states: Tensor = self.cells(sequences)[0]
            return states
        packed = pack_padded_sequence(sequences, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, _ = self.cells(packed)
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=sequences.shape[1])
        return states
