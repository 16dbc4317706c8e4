"""Touched rows: large tables are verified in the rows that batches use, and wrong layouts are still found."""

import re
import resource
from typing import Any

import pytest
import torch
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.engine.prepare import prepare
from dpexp.engine.prepared import Prepared
from dpexp.engine.verify import verify
from dpexp.verification import touched_rows
from dpexp.verification.touched_rows import with_touched_rows

ROWS, DIM = 300, 4


@pytest.fixture(autouse=True)
def small_tables_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched_rows, "LARGE", ROWS * DIM)


def batches(*ids: Any) -> list[Batch]:
    return [Batch((torch.tensor(each),), torch.zeros(len(each)), len(each), len(each)) for each in ids]


class Bags(nn.Module):
    """A bag by keyword, with a padding row, and a lookup of a table with one."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=7)
        self.table = nn.Embedding(ROWS, DIM, padding_idx=9)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.bag(input=ids, per_sample_weights=ids / ROWS) + self.table(ids[:, 0])


def test_the_rows_of_all_batches_give_the_outputs_and_gradients_of_the_table() -> None:
    model = Bags()
    of = batches([[3, 3, 7], [200, 9, 250]], [[9, 11, 3]])
    small, notes = with_touched_rows(model, of)
    rows = touched_rows.touched_rows(small)
    assert {3, 7, 9, 11, 200, 250, 0, 299} <= set(rows["bag.weight"].tolist())
    assert {3, 9, 200, 0, 299} <= set(rows["table.weight"].tolist())
    assert len(notes) == 2
    assert "69 of its 300 rows" in notes[0]
    for batch in of:
        outputs = [each(*batch.inputs) for each in (model, small)]
        assert torch.equal(*outputs)
        for each in outputs:
            each.sum().backward()
    for name, parameter in small.named_parameters():
        gradient = model.get_parameter(name).grad
        assert gradient is not None
        assert parameter.grad is not None
        assert torch.equal(gradient[rows[name]], parameter.grad)
    assert model.bag.weight.shape == (ROWS, DIM)


class ReadsTheTable(nn.Module):
    """Uses its table in another way than by lookups."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.table = how, nn.Embedding(ROWS, DIM, max_norm=1.0 if how == "writes" else None)
        self.head = nn.Linear(DIM, ROWS, bias=False)
        if how == "tied":
            self.head.weight = self.table.weight
        if how == "hooked":
            self.table.weight.register_hook(lambda gradient: gradient / 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.how == "hashes":
            ids = (ids * 31) % self.table.num_embeddings
        found = self.table(ids)
        if self.how == "norm":
            found = found + self.table.weight.norm()
        if self.how == "matrix":
            return found @ self.table.weight[:ROWS].reshape(DIM, ROWS)
        return self.head(found)


@pytest.mark.parametrize("how", ["tied", "hooked", "writes", "hashes", "norm", "matrix"])
def test_a_table_that_is_not_only_looked_up_is_compared_in_full(how: str) -> None:
    model = ReadsTheTable(how)
    assert with_touched_rows(model, batches([3, 250])) == (model, [])
    looked_up = ReadsTheTable("")
    assert with_touched_rows(looked_up, batches([3, 250]))[0] is not looked_up


# --- verification ---------------------------------------------------------------------------------


def prepared(**values: Any) -> Prepared:
    options = {"strategy": "hybrid", "virtual": 1, "model": f"embedding:rows={ROWS},dim={DIM}"}
    return prepare(RunConfig.from_dict(options | values))


def test_a_right_layout_is_verified_in_the_rows_of_its_batches() -> None:
    result = verify(prepared(sparse=True, optimizer="adam", virtual=2))
    assert result.passed, result.cause
    assert re.search("embedding was compared in .* of its 300 rows", "; ".join(result.notes))


class Masks(nn.Module):
    """In training it replaces ids at random, in eval mode it looks them all up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, DIM)

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(ROWS, (samples,), generator=generator), torch.zeros(samples, DIM)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.rand(ids.shape) < 0.9 if self.training else torch.zeros(ids.shape, dtype=torch.bool)
        return self.table(ids.masked_fill(mask, 5))


def test_other_rows_in_eval_mode_are_compared_in_the_full_table() -> None:
    result = verify(prepared(model=f"{__file__}:Masks", host=["table"], batch_size=10))
    assert result.passed, result.cause
    assert "was compared in" not in "; ".join(result.notes)


def shifted(model: Any, devices: Any) -> nn.Module:
    """A wrong backward of the rows that are looked up."""
    model.embedding.weight.register_hook(lambda gradient: gradient.roll(1, 0))
    return model  # type: ignore[no-any-return]


def changed(model: Any, devices: Any) -> nn.Module:
    """A row that nothing looks up is placed wrong."""
    with torch.no_grad():
        model.embedding.weight[-1, 0] += 1e-3
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize(("layout", "kind"), [("shifted", "gradients"), ("changed", "parameters")])
def test_a_wrong_layout_is_found(layout: str, kind: str) -> None:
    result = verify(prepared(strategy="custom", layout=f"{__file__}:{layout}"))
    assert f"{kind} (embedding.weight) differ" in result.cause


def test_verification_of_a_large_table_takes_no_memory_of_its_size() -> None:
    of_run = prepared(model="embedding:rows=2000000,dim=16", sparse=True)  # 128 MB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert verify(of_run).passed
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64_000
