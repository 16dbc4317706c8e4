"""Models of sequences of different lengths: an LSTM and an encoder with self-attention.

A sequence is ``(batch, length, width)`` values or ``(batch, length)`` ids, padded to the longest of the
*global* batch. A replica has only some rows, but the same padded length. Its outputs have that length too, so
that they can be gathered.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dpexp.config.features import PADDING
from dpexp.config.words import plural


class SequenceModel(nn.Module):
    """``forward(sequences, lengths)`` takes values, or ids if there is a vocabulary, and returns logits.

    ``lengths`` ``(batch,)`` are integers from 1 to length; without them every sequence is full. The logits
    are ``(batch, length, out)`` if ``stepwise``, else ``(batch, out)``.
    """

    head: nn.Linear
    input_kind = "sequence"
    from_data = (
        *(("in", "step_width"), ("out", "outputs")),
        *((name, name) for name in ("vocabulary", "length", "stepwise")),
    )

    def __init__(self, width: int, vocabulary: int, length: int, stepwise: bool) -> None:
        super().__init__()
        self.width, self.vocabulary, self.length, self.stepwise = width, vocabulary, length, stepwise

    def example(self, samples: int, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Random sequences, their lengths ``(samples,)`` from 1 to ``length``, and uniform classes.

        Classes are ``(samples, length)`` if ``stepwise``, else ``(samples,)``.
        """
        lengths = torch.randint(1, self.length + 1, (samples,), generator=generator)
        valid = step_mask(lengths, self.length)
        if self.vocabulary:
            values = torch.randint(self.vocabulary, valid.shape, generator=generator) * valid
        else:
            values = torch.randn(*valid.shape, self.width, generator=generator) * valid.unsqueeze(2)
        shape = valid.shape if self.stepwise else (samples,)
        classes = torch.randint(self.head.out_features, shape, generator=generator)
        return (values, lengths), classes.masked_fill(~valid, PADDING) if self.stepwise else classes


class RNN(SequenceModel):
    """Sequences ``(batch, length, in)``, or ids ``(batch, length)`` with a vocabulary -> logits.

    If not ``stepwise``, the logits are those of the last step of each sequence.

    ::

        (ids -> embedding ->) pack -> lstm -> pad to the global length -> head

    A replica pads to the length of its inputs and not to the longest sequence of its rows: replicas whose
    outputs have different lengths cannot be gathered. (PyTorch FAQ, "My recurrent network doesn't work
    with data parallelism".)

    Source: Hochreiter, Schmidhuber, "Long short-term memory", 1997.
    """

    def __init__(
        self,
        in_: int = 8,
        hidden: int = 32,
        vocabulary: int = 0,
        length: int = 12,
        out: int = 4,
        stepwise: bool = True,
    ) -> None:
        super().__init__(in_, vocabulary, length, stepwise)
        if vocabulary:
            self.embedding = nn.Embedding(vocabulary, in_)
        self.lstm = PackedLSTM(in_, hidden)
        self.head = nn.Linear(hidden, out)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        """``(batch, length[, in])`` and ``(batch,)`` -> ``(batch, length, out)``, or ``(batch, out)``."""
        if self.vocabulary:
            sequences = self.embedding(sequences)
        states = self.lstm(sequences, lengths)
        if not self.stepwise:
            states = last_step(states, lengths)
        return self.head(states)


class PackedLSTM(nn.Module):
    """An LSTM whose states after the end of a sequence are zeros.

    It packs its inputs itself, so that it can be replicated separately: a packed batch cannot be split.
    """

    def __init__(self, in_: int, hidden: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(in_, hidden, batch_first=True)

    def forward(self, sequences: Tensor, lengths: Tensor | None) -> Tensor:
        """``(batch, length, in)`` and ``(batch,)`` -> ``(batch, length, hidden)``."""
        self.cells.flatten_parameters()  # cuDNN wants one tensor; replicas have many
        if lengths is None or type(lengths) is not Tensor:  # fake tensors have no values to pack by
            return self.cells(sequences)[0]
        packed = pack_padded_sequence(sequences, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, _ = self.cells(packed)
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=sequences.shape[1])
        return states


class Transformer(SequenceModel):
    """Sequences ``(batch, length, in)``, or ids ``(batch, length)`` with a vocabulary -> logits.

    If ``stepwise``, a step attends to itself and earlier steps only, as the prediction of the next byte
    needs. Otherwise all steps attend to each other, and the logits are those of their mean.

    ::

        embedding -> encoder: position + depth x (attention, feed-forward), norm -> head

    ``embedding`` is a table for ids and a linear layer for values. There is no dropout, so that every layout
    computes the same in training too.

    Source: Vaswani et al., "Attention is all you need", 2017; normalization before each part as in
    Xiong et al., "On layer normalization in the transformer architecture", 2020.
    """

    def __init__(
        self,
        in_: int = 8,
        dim: int = 32,
        heads: int = 4,
        depth: int = 2,
        vocabulary: int = 0,
        length: int = 12,
        out: int = 4,
        stepwise: bool = True,
    ) -> None:
        super().__init__(in_, vocabulary, length, stepwise)
        self.embedding: nn.Module = nn.Embedding(vocabulary, dim) if vocabulary else nn.Linear(in_, dim)
        self.encoder = Encoder(length, dim, heads, depth, causal=stepwise)
        self.head = nn.Linear(dim, out)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        """``(batch, length[, in])`` and ``(batch,)`` -> ``(batch, length, out)``, or ``(batch, out)``.

        Raises ValueError for sequences longer than the positions.
        """
        if sequences.shape[1] > self.length:
            steps = sequences.shape[1]
            raise ValueError(
                f"sequences of {plural(steps, 'step')}, but positions for {self.length}: length={steps}"
            )
        states = self.encoder(self.embedding(sequences), lengths)
        return self.head(states if self.stepwise else masked_mean(states, lengths))


class Encoder(nn.Module):
    """Positions, and layers of attention with masks.

    It makes its masks itself, so that it can be replicated separately: a mask has no rows to split.
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
        """``(batch, length, dim)`` and ``(batch,)`` -> ``(batch, length, dim)``."""
        length = states.shape[1]
        mask = padding = None
        if self.causal:  # steps after the end of a sequence are later than all of it
            mask = torch.ones(length, length, dtype=torch.bool, device=states.device).triu(1)
        elif lengths is not None:
            padding = ~step_mask(lengths, length)
        states = states + self.position[:length]
        for layer in self.layers:
            states = layer(states, src_mask=mask, src_key_padding_mask=padding, is_causal=self.causal)
        return self.norm(states)


def step_mask(lengths: Tensor, length: int) -> Tensor:
    """``(batch, length)``: True for the steps before the end of each sequence."""
    return torch.arange(length, device=lengths.device) < lengths.unsqueeze(1)


def masked_mean(values: Tensor, lengths: Tensor | None) -> Tensor:
    """``(batch, length, width)`` -> ``(batch, width)``: the mean over each sequence's own steps."""
    if lengths is None:
        return values.mean(dim=1)
    weights = step_mask(lengths, values.shape[1]).to(values.dtype) / lengths.unsqueeze(1)
    return (values * weights.unsqueeze(2)).sum(dim=1)


def last_step(values: Tensor, lengths: Tensor | None) -> Tensor:
    """``(batch, length, width)`` -> ``(batch, width)``: each sequence's own last step."""
    if lengths is None:
        return values[:, -1]
    return values[torch.arange(len(lengths), device=lengths.device), lengths - 1]
