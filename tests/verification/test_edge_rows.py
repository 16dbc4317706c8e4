"""Edge rows: a run makes a batch of rows that its data lacks, and no right model is called wrong for it.

Layouts that are wrong for such rows alone are in ``cases/edge_rows.py``.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.planted import Net, Planted, on_host, proof_result, random_batches
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.verification import touched_rows
from dpexp.verification.edge_rows import with_edge_rows

ROWS = 8


def batch_of(*inputs: Any, rows: int = ROWS) -> Batch:
    return Batch(inputs, torch.arange(rows), rows, rows)


def made_of(model: nn.Module, *inputs: Any, rows: int = ROWS) -> Batch:
    made = with_edge_rows(model, batch_of(*inputs, rows=rows))
    assert made is not None
    return made


def random_ids(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(size, (ROWS, *shape), generator=torch.Generator().manual_seed(0))


# --- ids ----------------------------------------------------------------------------------------------


def test_the_boundaries_of_the_layout_come_first() -> None:
    made = with_edge_rows(
        nn.Embedding(7000, 3), batch_of(torch.zeros(20, dtype=torch.long), rows=20), shards=7
    )
    assert made is not None
    boundaries = {at - side for at in range(1000, 7000, 1000) for side in (0, 1)}
    assert boundaries <= set(made.inputs[0].tolist())


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
        looked_up = {
            "as they are": ids,
            "turned": ids.t(),
            "shifted": ids + 1,
            "in part": ids[:, 1:],
            "after a change": ids.clamp(max=50),
        }
        return self.table(looked_up[self.how]).sum() * others


@pytest.mark.parametrize("how", ["as they are", "turned", "shifted", "in part", "after a change"])
def test_only_ids_that_are_all_looked_up_as_they_are_are_changed(how: str) -> None:
    ids, lengths = 20 + random_ids(79, 3), 1 + torch.arange(ROWS)
    made = made_of(Uses(how), ids, lengths)
    is_changed = int(made.inputs[0].max()) == 99 and int(made.inputs[0].min()) == 0
    assert is_changed == (how in ("as they are", "turned"))
    assert made.inputs[1].tolist() == [1, 1, *range(3, ROWS + 1)], "the first row twice"


def test_a_large_table_is_compared_in_the_rows_of_the_made_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched_rows, "LARGE", 40000)
    prepared = prepare(RunConfig("hybrid", model="embedding:rows=4000", virtual=1))
    model, _ = touched_rows.with_touched_rows(
        prepared.model, [made] if (made := with_edge_rows(prepared.model, next(prepared.batches(0)))) else []
    )
    assert {3999, 2000, 1999, 1333} <= set(touched_rows.touched_rows(model)["embedding.weight"].tolist())
    assert verify(prepared).passed


@pytest.mark.parametrize(("rows", "kept"), [(2, [0]), (3, [0, 0])])
def test_a_tiny_batch_has_a_zero_row_beside_rows_that_are_kept(rows: int, kept: list[int]) -> None:
    x = torch.rand(rows, 5) + 1
    (made,) = made_of(nn.Linear(5, 2), x, rows=rows).inputs
    assert torch.equal(made, torch.cat([x[kept], torch.zeros(1, 5)]))
    assert with_edge_rows(nn.Linear(5, 2), batch_of(x[:1], rows=1)) is None


KEPT = {
    "mask": torch.arange(ROWS * 5).view(ROWS, 5).remainder(2).float(),
    "additive mask": torch.zeros(ROWS, ROWS).masked_fill(torch.eye(ROWS) > 0, -torch.inf),
    "one-hot": torch.eye(ROWS),
    "probabilities": torch.rand(ROWS, 5).softmax(1),
    "counts": torch.arange(ROWS * 5).view(ROWS, 5).float(),
    "weights": torch.rand(ROWS),
}


@pytest.mark.parametrize("name", KEPT)
def test_masks_probabilities_and_weights_have_no_other_values(name: str) -> None:
    (made,) = made_of(nn.Identity(), KEPT[name]).inputs
    assert torch.equal(made[1:2], KEPT[name][:1])
    assert torch.equal(made[2:], KEPT[name][2:])


# --- models that do not take every row ----------------------------------------------------------------


class Logarithm(nn.Linear):
    """Has no finite output for a row of zeros, and refuses one that is large; ``calls`` counts."""

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


# --- right models -------------------------------------------------------------------------------------


class Attends(nn.Module):
    """Softmax over the tokens, of which 0 is padding: a row of padding alone would not be a number."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(60, 8, padding_idx=0), nn.Linear(8, 4)

    def example(self, samples: int, rng: torch.Generator) -> tuple[Any, Any]:
        ids = torch.randint(1, 60, (samples, 6), generator=rng)
        ids[torch.arange(6) > 2 + torch.arange(samples)[:, None] % 4] = 0
        return ids, torch.randint(4, (samples,), generator=rng)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        scores = (x @ x.mT).masked_fill((ids == 0)[:, None], -torch.inf)
        return self.head((scores.softmax(-1) @ x).mean(1))


class CountsTokens(Attends):
    """The loss counts the tokens that are ids, and targets say how many these are."""

    def example(self, samples: int, rng: torch.Generator) -> tuple[Any, Any]:
        ids, _ = super().example(samples, rng)
        return ids, torch.where(ids == 0, -100, ids % 4)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.table(ids)), ids != 0

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        logits, mask = outputs
        return nn.functional.cross_entropy(logits[mask], targets.clamp(min=0)[mask])

    def loss_weight(self, targets: torch.Tensor) -> torch.Tensor:
        return (targets != -100).sum()


class OfUnitLength(Net):
    """A row of zeros has no direction, in the forward or in the backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x / x.norm(dim=1, keepdim=True))
        return x / x.square().sum(1, keepdim=True).sqrt()


@pytest.mark.parametrize("model", [Attends, CountsTokens, OfUnitLength])
def test_a_right_model_is_verified(model: type[nn.Module]) -> None:
    file = f"{__file__}:{model.__name__}"
    result = verify(prepare(RunConfig("whole", model=file, batch_size=10, virtual=2)))
    assert (result.passed, result.steps, result.cause) == (True, 3, "")


# --- in a proof ---------------------------------------------------------------------------------------


def clipped(model: nn.Module) -> Any:
    model.register_forward_pre_hook(lambda module, args: (args[0].clamp(-9, 9),))
    return on_host(model)


def test_a_made_batch_is_no_step_of_the_result_and_its_failure_says_what_it_is() -> None:
    batches = random_batches(6, 4)
    made = with_edge_rows(Net(), batches[0])
    assert proof_result(Net(), clipped, batches).passed
    assert proof_result(Net(), on_host, batches, made=made).steps == 2
    cause = proof_result(Net(), clipped, batches, made=made).cause
    assert cause.startswith("on a made batch of edge rows, step 3 (6 rows): outputs differ")
    assert "rows 2 differ" in cause


def test_the_gradients_of_made_batches_that_accumulate_are_compared() -> None:
    def clipped_gradient(model: nn.Module) -> Any:
        model.fc.weight.register_hook(lambda gradient: gradient.clamp(-9, 9))  # type: ignore[union-attr, operator]
        return on_host(model)

    prepared = prepare(RunConfig("single", accumulate=2))
    assert verify(prepared).passed
    cause = verify(replace(prepared, strategy=Planted(place_wrong=clipped_gradient))).cause
    assert cause.startswith("on a made batch of edge rows, step 6 (30 rows): gradients (fc.weight) differ")


def test_an_error_of_the_layout_says_that_the_batch_is_made() -> None:
    def refuse(module: nn.Module, args: Any) -> None:
        if args[0].max() > 9:
            raise IndexError("too large")

    def refusing(model: nn.Module) -> Any:
        model.register_forward_pre_hook(refuse)
        return on_host(model)

    batches = random_batches(6, 4)
    with pytest.raises(IndexError) as raised:
        proof_result(Net(), refusing, batches, made=with_edge_rows(Net(), batches[0]))
    assert "on a made batch of edge rows" in raised.value.__notes__[0]
