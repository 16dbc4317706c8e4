"""Batches made so that verification takes paths that those of a run do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_ranks import in_ranks
from planted import Net, on_host, proof_result, random_batches
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpexp.data.batch import Batch
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.placed import GradientSync, Placed
from dpexp.verification.made_batches import Made, Pieces, looked_up, made_batches
from dpexp.verification.result import Result

IDS = 50


class TwoTables(nn.Module):
    """Ids ``(rows, 3)``: two columns are of one table, the last of a smaller one."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small, self.fc = nn.Embedding(IDS, 4), nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = self.large(ids[:, :2]).sum(1) + self.small(ids[:, 2])
        return self.fc(vectors)  # type: ignore[no-any-return]


def ids(rows: int = 6) -> Batch:
    torch.manual_seed(0)
    return Batch((torch.randint(5, (rows, 3)),), torch.randn(rows, 2), rows, rows)


def numbers(rows: int = 6) -> Batch:
    return random_batches(rows)[0]


def made(model: nn.Module, batch: Batch, pieces: Pieces | None = None) -> dict[str, Batch]:
    return {each.what: each.batch for each in made_batches(model, batch, pieces or Pieces())}


@pytest.mark.parametrize(
    ("pieces", "rows"),
    [
        (Pieces(), {"one row in all": 1, "all rows alike": 2}),
        (
            Pieces(2, 2),
            {
                "one row for each piece": 4,
                "the most uneven split": 6,
                "all rows alike": 8,
            },
        ),
        (Pieces(2, 1, is_fixed=True), {"all rows alike": 6}),
    ],
)
def test_batches_have_rows_of_the_run_in_other_numbers(pieces: Pieces, rows: dict[str, int]) -> None:
    batch = numbers()
    found = made(nn.Linear(5, 2), batch, pieces)
    assert {what: each.rows for what, each in found.items()} == rows
    for each in found.values():
        assert all((row == batch.inputs[0]).all(1).any() for row in each.inputs[0])
        assert len(each.targets) == each.rows == each.global_rows
    assert (found["all rows alike"].inputs[0] == batch.inputs[0][0]).all()


def test_every_id_of_each_table_is_looked_up_in_its_place() -> None:
    found = made(TwoTables(), ids())
    large, small = (found["every id"].inputs[0][:, columns] for columns in (slice(0, 2), 2))
    assert large.unique().tolist() == list(range(IDS))
    assert small.unique().tolist() == list(range(7))


@pytest.mark.parametrize("change", [torch.Tensor.long, lambda ids: ids.t().contiguous().t()])
def test_ids_are_found_through_a_conversion(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = nn.Sequential(nn.Identity(), nn.Embedding(9, 2))
    model[0].forward = change  # type: ignore[method-assign]
    ((found),) = looked_up(model, (torch.tensor([[1, 2], [3, 4]], dtype=torch.int32),))
    assert (found.table, found.table_rows, found.count) == ("1", 9, 4)


class Experts(nn.Module):
    """The sign of the first feature chooses which layer computes a row."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(5, 2), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x[:, 0] > 0
        outputs = x.new_zeros(len(x), 2)
        for layer, rows in ((self.one, chosen), (self.other, ~chosen)):
            if rows.any():
                outputs[rows] = layer(x[rows])
        return outputs


# --- stepped ------------------------------------------------------------------------------------------


def stepped(lay_out: Callable[[nn.Module], Placed], *batches: Made, **options: Any) -> Result:
    return proof_result(Net(), lay_out, [numbers()], made=batches, **options)


def test_what_a_layout_raises_on_a_made_batch_is_a_note_and_the_others_are_stepped() -> None:
    def refuses(model: nn.Module) -> Placed:
        def check(module: nn.Module, args: Any) -> None:
            if len(args[0]) % 2:
                raise ValueError("rows in pairs, please")

        model.register_forward_pre_hook(check)
        return on_host(model)

    odd, even = Made(numbers(3), "three rows"), Made(numbers(2), "two rows")
    result = stepped(refuses, odd, even)
    assert (result.passed, result.steps) == (True, 2)
    (note,) = result.notes
    assert note.startswith("a batch with three rows was not verified: the layout raises ValueError: rows in ")


def test_a_made_batch_whose_loss_is_not_finite_is_left_out() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs, targets) / (len(outputs) - 1)

    result = stepped(on_host, Made(numbers(1), "one row in all"), loss=loss)
    assert (result.passed, result.steps) == (True, 1)
    assert "a single device refuses it" in result.notes[0]


def of_experts(group: ProcessGroup) -> list[Any]:
    """Whether ranks pass, and the steps; a batch of one row would leave a rank without some gradients."""

    def wrapped(model: nn.Module) -> Placed:
        return on_host(DistributedDataParallel(model), GradientSync(group.size))

    torch.manual_seed(0)
    pieces = Pieces(group.size)
    result = proof_result(
        Experts(),
        wrapped,
        [numbers(9)],
        group=group,
        made=made_batches(Experts(), numbers(9), pieces),
        pieces=pieces,
    )
    return [result.passed, result.steps, [*result.notes]]


def test_rows_that_reach_fewer_parameters_are_no_batch_of_ranks_which_wait_for_these() -> None:
    for found in in_ranks(2, __file__, "of_experts")["of_experts"]:
        assert found[0] is True
        assert found[1] < 4 + 3
