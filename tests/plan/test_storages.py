"""The log of storages on real tensors, against sums by hand."""

import torch
from torch import nn

from dpexp.plan.memory import KINDS, ModuleTrace, StorageLog
from dpexp.strategies.module_calls import module_calls

ROW = 4 * 1000  # bytes of a thousand numbers of float32


def kinds(**sizes: int) -> dict[str, int]:
    return dict.fromkeys(KINDS, 0) | sizes


def test_a_storage_counts_once_for_all_of_its_views_and_until_the_last_is_gone() -> None:
    with StorageLog() as log:
        first = torch.zeros(3, 1000)
        view = first.t()[10:20]
        del first
        second = torch.zeros(1000)
        peak = log.peak("cpu")
        del view, second
        since = len(log.changes)
        third = torch.zeros(2000)
        later = log.peak("cpu", since - 1)
        del third
    assert (peak.bytes, later.bytes) == (4 * ROW, 2 * ROW)
    assert sum(change.bytes for change in log.changes) == 0


def test_a_storage_that_is_resized_counts_by_its_size_at_each_time() -> None:
    """So FSDP2 frees parameters that it has gathered, and gathers them again."""
    resize = torch.UntypedStorage.resize_
    with StorageLog() as log:
        gathered = torch.zeros(2, 1000)
        storage = gathered.untyped_storage()
        storage.resize_(0)
        other = torch.zeros(1000)
        storage.resize_(2 * ROW)
        assert [change.bytes for change in log.changes] == [2 * ROW, -2 * ROW, ROW, 2 * ROW]
        assert log.peak("cpu").bytes == 3 * ROW
        del other
    storage.resize_(0)
    assert resize is torch.UntypedStorage.resize_
    assert len(log.changes) == 5, "nothing is followed after the end but what is freed"


def test_activations_are_freed_in_backward_and_gradients_are_known_at_its_end() -> None:
    model = nn.Sequential(nn.Linear(1000, 1000, bias=False), nn.Sigmoid(), nn.Linear(1000, 1000, bias=False))
    inputs = torch.zeros(10, 1000)
    log = StorageLog()
    trace = ModuleTrace(log)
    with log, module_calls(model, trace.entered, trace.left):
        log.label("parameters", list(model.parameters()))
        outputs = model(inputs)
        # the first product is not kept: the sigmoid's backward needs its outputs only
        kept = kinds(parameters=2000 * ROW, inputs=10 * ROW, activations=20 * ROW)
        assert sum(change.bytes for change in log.changes) == sum(kept.values())
        since = len(log.changes)
        outputs.sum().backward()
        log.label("gradients", [each.grad for each in model.parameters()])
        peak = log.peak("cpu", since)
        assert sum(change.bytes for change in log.changes) == 4000 * ROW + 20 * ROW, "outputs are held here"
    # both gradients; outputs and the sigmoid's; the gradients of the sigmoid's outputs and inputs
    assert peak.kinds["gradients"] == 2000 * ROW
    assert peak.kinds["parameters"] == 2000 * ROW
    assert peak.module in ("0", "1")


def test_a_sparse_gradient_counts_by_its_rows_and_their_numbers() -> None:
    table = nn.Embedding(5000, 1000, sparse=True)
    rows = torch.tensor([7, 9, 7])
    with StorageLog() as log:
        log.label("parameters", list(table.parameters()))
        log.label("inputs", rows)
        table(rows).sum().backward()
        log.label("gradients", table.weight.grad)
        now = log.peak("cpu", len(log.changes) - 1)
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    assert now.kinds["gradients"] == 3 * ROW + 3 * 8  # numbers are int64
