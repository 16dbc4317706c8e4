"""Sources of data: their samples and order are the same in every process, and fit the model."""

from pathlib import Path
from typing import Any

import torch
from helpers import named
from torch import Tensor

from dpexp.data.batch import Batch
from dpexp.data.dataset import Dataset


def ready(data_text: str, model_text: str, seed: int = 0) -> Dataset:
    source = named.source(data_text)
    torch.manual_seed(seed)
    return source.dataset(named.build(model_text, source.features), seed)


def test_epoch_ends_with_an_uneven_batch() -> None:
    dataset = ready("random", "linear")
    assert [batch.rows for batch in dataset.batches(30)] == [30, 30, 30, 10]
    assert [batch.rows for batch in dataset.batches(1000)] == [100]
    assert (dataset.epochs.rows(30), dataset.epochs.rows(50)) == ({30: 3, 10: 1}, {50: 2})


def test_order_depends_on_seed_and_epoch_only() -> None:
    dataset = ready("random", "linear")

    def targets(**options: Any) -> Tensor:
        return torch.cat([batch.targets for batch in dataset.batches(30, **options)])

    expected = targets(seed=3, epoch=1)
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    assert torch.equal(targets(seed=3, epoch=1), expected)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(targets(seed=3, epoch=2), expected)
    assert not torch.equal(targets(seed=4, epoch=1), expected)
    unshuffled = targets(shuffle=False)
    assert sorted(unshuffled.tolist()) == sorted(expected.tolist())
    assert torch.equal(unshuffled, next(dataset.batches(100, shuffle=False)).targets)


def test_a_rank_computes_its_rows_and_without_any_two_of_weight_zero() -> None:
    batch = Batch((torch.arange(10.0),), torch.arange(10), 10, 10)
    parts = [batch.part(lambda rows, at=at: slice(at, min(at + 4, rows))) for at in (0, 4, 8)]
    assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)
    assert [part.weight for part in parts] == [0.4, 0.4, 0.2]
    empty = batch.part(lambda rows: slice(rows, rows))
    assert (empty.rows, empty.global_rows, empty.weight, len(empty.targets)) == (0, 10, 0, 2)


def test_the_digest_is_that_of_the_first_samples_and_of_how_many_there_are() -> None:
    texts = ("random:samples=2000", "random:samples=2000", "random:samples=3000", "random:samples=2001")
    one, same, more, one_more = (ready(text, "linear").digest for text in texts)
    assert one == same
    assert len({one, more, one_more, ready(texts[0], "linear", seed=1).digest}) == 4


def test_only_floating_point_tensors_change_their_type() -> None:
    batch = next(ready("random:samples=20", "dlrm").to(torch.float64).batches(5))
    assert [tensor.dtype for tensor in batch.inputs] == [torch.float64, torch.int64]
    assert batch.targets.dtype is torch.float64
    held_out = ready("digits", "mlp").to(torch.float64).test
    assert held_out is not None
    batch = next(held_out.batches(5))
    assert (batch.inputs[0].dtype, batch.targets.dtype) == (torch.float64, torch.int64)


# --- digits and text -----------------------------------------------------------------------------


def test_digits_have_the_shape_that_the_model_takes() -> None:
    shapes = {
        name: next(ready("digits", name).batches(30)).inputs[0].shape for name in ("cnn", "linear", "rnn")
    }
    assert shapes == {"cnn": (30, 1, 8, 8), "linear": (30, 64), "rnn": (30, 8, 8)}


def test_split_of_digits_does_not_depend_on_the_seed() -> None:
    one, two = (ready("digits", "cnn", seed=seed) for seed in (0, 1))
    assert one.test is not None
    assert two.test is not None
    assert (one.epochs.samples, one.test.epochs.samples) == (1437, 360)
    assert (one.digest, one.test.digest) == (two.digest, two.test.digest)
    images = [next(part.batches(2000, shuffle=False)).inputs[0].flatten(1) for part in (one, one.test)]
    assert abs(torch.cat(images).mean().item()) < 0.02
    assert abs(torch.cat(images).std().item() - 1) < 0.02
    training = {tuple(image.tolist()) for image in images[0]}
    assert not any(tuple(image.tolist()) in training for image in images[1])


def test_target_of_each_byte_is_the_next_byte(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(bytes(range(256)))
    dataset = ready(f"text:length=5,path={tmp_path / 'book.txt'}", "embedding")
    assert dataset.epochs.samples == 51
    batch = next(dataset.batches(51, shuffle=False))
    assert batch.inputs[0].tolist()[:2] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    for each in (batch, next(dataset.batches(51))):
        assert torch.equal(each.targets, each.inputs[0] + 1)
        assert each.inputs[0].dtype is torch.int64
