"""Edge rows: a run makes a batch of rows that its data lacks.

Layouts that are wrong for such rows alone, and models that are right for them, are in ``cases/edge_rows.py``.
"""

from typing import Any

import pytest
import torch
from torch import nn

from dpexp.data.batch import Batch
from dpexp.verification.edge_rows import with_edge_rows

ROWS = 8


def made_of(model: nn.Module, *inputs: torch.Tensor) -> Batch:
    made = with_edge_rows(model, Batch(inputs, torch.arange(ROWS), ROWS, ROWS))
    assert made is not None
    return made


def random_ids(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(size, (ROWS, *shape), generator=torch.Generator().manual_seed(0))


class Columns(nn.Module):
    """A table of its own for each column, and one that two columns share."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 3) for size in (5, 50, 500)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.tables[at](ids[:, column]) for column, at in enumerate((0, 1, 2, 1))])


def test_each_column_has_the_edges_of_its_own_table() -> None:
    made = made_of(Columns(), random_ids(5, 4)).inputs[0]
    assert [int(made[:, at].max()) for at in range(3)] == [4, 49, 499]
    assert set(made[:, 0].tolist()) == set(range(5))
    assert {499, 0, 249, 250} <= set(made[:, 2].tolist())


class Uses(nn.Module):
    """Looks ids up as it is told, and uses another input of integers otherwise."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.table = how, nn.Embedding(100, 4)

    def forward(self, ids: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        changed = {
            "transposed": ids.t(),
            "shifted": ids + 1,
            "in part": ids[:, 1:],
            "clamped": ids.clamp(max=50),
        }
        return self.table(changed[self.how]).sum() * others


@pytest.mark.parametrize("how", ["transposed", "shifted", "in part", "clamped"])
def test_only_ids_that_are_all_looked_up_as_they_are_are_changed(how: str) -> None:
    ids, lengths = 20 + random_ids(79, 3), 1 + torch.arange(ROWS)
    made = made_of(Uses(how), ids, lengths)
    is_changed = int(made.inputs[0].max()) == 99 and int(made.inputs[0].min()) == 0
    assert is_changed == (how == "transposed")
    assert made.inputs[1].tolist() == [1, 1, *range(3, ROWS + 1)], "the first row twice"


KEPT = {
    "mask": torch.arange(ROWS * 5).view(ROWS, 5).remainder(2).float(),
    "additive mask": torch.zeros(ROWS, ROWS).masked_fill(torch.eye(ROWS) > 0, -torch.inf),
    "probabilities": torch.rand(ROWS, 5).softmax(1),
    "counts": torch.arange(ROWS * 5).view(ROWS, 5).float(),
    "weights": torch.rand(ROWS),
}


@pytest.mark.parametrize("name", KEPT)
def test_masks_probabilities_and_weights_have_no_other_values(name: str) -> None:
    (made,) = made_of(nn.Identity(), KEPT[name]).inputs
    assert torch.equal(made[1:2], KEPT[name][:1])
    assert torch.equal(made[2:], KEPT[name][2:])


class Logarithm(nn.Linear):
    """Has no finite output for a row of zeros, and refuses one that is large; ``calls`` counts."""

    calls: Any

    def __init__(self) -> None:
        super().__init__(5, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if x.max() > 50:
            raise ValueError("too large")
        return super().forward(x.log())


def test_the_rows_that_a_model_takes_are_kept_and_it_stays_as_it_is() -> None:
    model, x = Logarithm(), torch.rand(ROWS, 5) + 1
    (made,) = made_of(model, x).inputs
    assert torch.equal(made, torch.cat([x[:1], x[:1], x[2:]]))
    assert model.calls == 0
