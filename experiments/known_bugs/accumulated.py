"""Two micro-batches of a language model of Transformers, as its Trainer adds up their losses."""

import torch
from torch import nn

IGNORED = -100


class Labelled(nn.Module):
    """A language model that returns the loss of its labels, (rows, tokens)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, labels, **options):
        return self.model(ids, labels=labels, **options).loss


class Accumulated(Labelled):
    """The loss of a batch from those of its two micro-batches: ``combine(losses)``, or by the tokens of all."""

    def __init__(self, labelled, combine=None):
        super().__init__(labelled.model)
        self.combine = combine

    def forward(self, ids, labels):
        options = {} if self.combine else {"num_items_in_batch": (labels[:, 1:] != IGNORED).sum()}
        pieces = zip(ids.chunk(2), labels.chunk(2), strict=True)
        losses = [super(Accumulated, self).forward(*piece, **options) for piece in pieces]
        return self.combine(losses) if self.combine else sum(losses)


def batches():
    """Rows with unequal numbers of labels."""
    found = []
    for rows in (4, 3):
        ids = torch.randint(64, (rows, 8), generator=torch.Generator().manual_seed(rows))
        labels = ids.clone()
        for row in range(rows):
            labels[row, 2 + 2 * row :] = IGNORED
        found.append(((ids, labels), ids))
    return found
