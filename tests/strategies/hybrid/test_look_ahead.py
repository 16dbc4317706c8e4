"""Look-ahead: rows that are looked up before the updates of earlier batches are those of a serial run."""

import copy
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid_steps import DIM, ROWS, assert_same_bits, config, prepared_trainer, trained, trainer
from hypothesis import given, settings
from hypothesis import strategies as st
from row_checker import FIRST, PATIENCE_S, RowChecker, schedule
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.data.batch import Batch
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.strategies.hybrid.look_ahead import LookAhead
from dpexp.training.optimizer_names import FOR_SPARSE
from dpexp.training.trainer import Trainer

HERE = str(Path(__file__))


def batch(ids: torch.Tensor, classes: int = 10) -> Batch:
    return Batch((ids,), ids % classes, len(ids), len(ids))


def look_ahead(of: Trainer) -> LookAhead:
    found = of.placed.prefetch
    assert isinstance(found, LookAhead)
    return found


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if "look-ahead" in each.name]


@pytest.fixture(autouse=True)
def leaves_no_thread() -> Iterator[None]:
    yield
    assert threads() == []


# --- the same bits as a serial run ------------------------------------------------------------------


def power_law(count: int) -> Iterator[torch.Tensor]:
    drawn = torch.rand(count, 6, generator=torch.Generator().manual_seed(1))
    yield from (ROWS * drawn**4).long()


STREAMS: dict[str, Callable[[int], Iterator[torch.Tensor]]] = {
    "every id the same": lambda count: iter([torch.full((6,), 3)] * count),
    "power law": power_law,
    "alternating": lambda count: (torch.arange(6) + 6 * (number % 2) for number in range(count)),
}


@pytest.mark.parametrize(
    ("stream", "optimizer", "depth"),
    [("every id the same", "sgd", 1), ("power law", "adam", 2), ("alternating", "rowwise_adagrad", 1)],
)
def test_thousands_of_pipelined_steps_give_the_bits_of_serial_ones(
    stream: str, optimizer: str, depth: int
) -> None:
    batches = [batch(ids) for ids in STREAMS[stream](2000)]
    serial = trainer(optimizer=optimizer)
    pipelined = trainer(optimizer=optimizer, pipeline=True, lookahead=depth)
    assert trained(pipelined, batches) == trained(serial, batches)
    assert_same_bits(pipelined, serial)
    assert look_ahead(pipelined).rows_ahead == 6 * (2000 - FIRST)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[torch.Tensor], str, int, list[tuple[int, int]]]:
    """(ids of each batch, optimizer, depth, schedule) of a short run."""
    depth = draw(st.integers(1, 4))
    hottest = draw(st.sampled_from([0, 2, ROWS - 1]))
    ids = st.lists(st.integers(0, hottest), min_size=1, max_size=5).map(torch.tensor)
    batches = draw(st.lists(ids, min_size=FIRST + 1, max_size=12))
    late = st.integers(0, 4 * depth)
    offsets = draw(st.lists(st.tuples(late, late), min_size=len(batches), max_size=len(batches)))
    return batches, draw(st.sampled_from(list(FOR_SPARSE))), depth, schedule(offsets[FIRST:], depth)


@settings(max_examples=25)
@given(runs())
def test_every_row_is_read_after_its_last_write_wherever_stages_are_delayed(
    run: tuple[list[torch.Tensor], str, int, list[tuple[int, int]]],
) -> None:
    ids, optimizer, depth, points = run
    batches = [batch(each) for each in ids]
    serial = trainer(optimizer=optimizer)
    pipelined = trainer(optimizer=optimizer, pipeline=True, lookahead=depth)
    checker = RowChecker(pipelined, batches, points)
    assert checker.train() == trained(serial, batches)
    checker.check()
    assert_same_bits(pipelined, serial)


def test_only_rows_that_were_written_since_are_read_again() -> None:
    """Batch 3 is read while update 2 is about to write: row 5 is in both."""
    batches = [batch(torch.tensor(ids)) for ids in ([0], [1], [5, 6], [5, 7, 8])]
    pipelined = trainer(pipeline=True)
    checker = RowChecker(pipelined, batches, [(4, 4), (8, 10)])
    checker.train()
    checker.check()
    again = [(number, rows.tolist()) for kind, number, rows in checker.events if kind == "again"]
    assert again == [(3, [5])]


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_batches_wait_than_the_depth(depth: int) -> None:
    read: list[Batch] = []

    def source() -> Iterator[Batch]:
        for ids in power_law(12):
            read.append(batch(ids))
            yield read[-1]

    pipelined = trainer(pipeline=True, lookahead=depth)
    with pipelined.ahead(source()) as ahead:
        for number, each in enumerate(ahead, 1):
            assert len(read) == min(number + depth, 12)
            pipelined.step(each)


class Many(nn.Module):
    """Tables of every kind, one of them called twice, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Hosts()
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(3 * DIM, 3)

    def example(self, samples: int, generator: torch.Generator) -> tuple[Any, torch.Tensor]:
        ids = torch.randint(ROWS, (samples, 3), generator=generator)
        return (torch.randn(samples, 3, generator=generator), ids), torch.randint(
            3, (samples,), generator=generator
        )

    def forward(self, weights: torch.Tensor, ids: torch.Tensor) -> Any:
        return self.head(self.dropout(self.embedding(ids, weights)))


class Hosts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.padded = nn.Embedding(ROWS, DIM, padding_idx=2)
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="mean")
        self.ragged = nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True)
        self.weighted = nn.EmbeddingBag(ROWS, DIM, mode="sum")

    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        offsets = torch.cat([torch.arange(0, ids.numel(), 3), torch.tensor([ids.numel()])])
        pooled = self.bag(ids) + self.weighted(ids, per_sample_weights=weights)
        ragged = self.ragged(ids.reshape(-1), offsets)
        return torch.cat([self.padded(ids[:, 0]) + self.padded(ids[:, 1]), pooled, ragged], 1)


@pytest.mark.parametrize(
    "values",
    [
        {"model": "dlrm:tables=3,rows=30,dim=4", "data": "random:samples=200"},
        {"model": "dlrm:tables=3,rows=30,dim=4,fused=False", "optimizer": "rowwise_adagrad"},
        {"model": f"{HERE}:Many", "optimizer": "adagrad", "clip_norm": 0.05, "lookahead": 3},
        {"model": f"{HERE}:Many", "optimizer": "adam", "accumulate": 3, "virtual": 2},
        {"model": f"{HERE}:Many", "eval": True},
    ],
)
def test_tables_of_every_kind_give_the_bits_of_a_serial_run(values: dict[str, Any]) -> None:
    both = []
    for pipeline in (False, True):
        torch.manual_seed(0)
        serial_values = {} if pipeline else {"lookahead": 1}
        prepared, steps = prepared_trainer(**{"batch_size": 7, "pipeline": pipeline} | values | serial_values)
        source = prepared.endless_batches()
        both.append((steps, trained(steps, [next(source) for _ in range(40)])))
    (serial, losses), (pipelined, found) = both
    assert found == losses
    assert_same_bits(pipelined, serial)
    ahead = look_ahead(pipelined)
    assert ahead.rows_ahead > 0
    assert (ahead.rows_again > 0) == (not values.get("eval"))


def test_a_run_that_resumes_from_a_snapshot_inside_the_pipeline_is_exact() -> None:
    batches = [batch(ids) for ids in power_law(30)]
    undisturbed, resumed = (trainer(optimizer="adam", pipeline=True, lookahead=3) for _ in range(2))
    with undisturbed.ahead(iter(batches)) as ahead:
        for number, each in enumerate(ahead):
            undisturbed.step(each)
            if number == 12:
                state = copy.deepcopy(undisturbed.state_dict())
    trained(resumed, batches[:2])
    resumed.load_state_dict(state)
    trained(resumed, batches[13:])
    assert_same_bits(resumed, undisturbed)


def test_a_table_that_somebody_else_writes_to_is_read_again() -> None:
    both = []
    for pipeline in (False, True):
        steps = trainer(pipeline=pipeline)
        with steps.ahead(iter([batch(ids) for ids in power_law(8)])) as ahead:
            for each in ahead:
                steps.step(each)
                with torch.no_grad():
                    next(iter(steps.full_parameters().values())).mul_(0.5)
        both.append(steps)
    assert_same_bits(*both)


def test_the_steps_of_a_verification_look_ahead() -> None:
    """A layout that reads no row again is found."""
    right, wrong = (prepare(config(pipeline=True, optimizer="adagrad")) for _ in range(2))
    assert verify(right).passed
    place = wrong.strategy.place
    was_read = threading.Event()

    class Unwritten:
        """No row is ever marked; the second update waits for the lookup of the third batch."""

        def index_fill_(self, *_: Any) -> None:
            assert was_read.wait(PATIENCE_S)

        def index_select(self, dim: int, rows: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(rows)

    def without_marks(*args: Any) -> Any:
        placed: Any = place(*args)
        read_ahead = placed.prefetch._read_ahead
        placed.prefetch._read_ahead = lambda each: (read_ahead(each), was_read.set())[0]
        placed.prefetch._written = Unwritten()
        return placed

    wrong.strategy.place = without_marks  # type: ignore[method-assign]
    assert not verify(wrong).passed


# --- ends -------------------------------------------------------------------------------------------


def failing_update(steps: Trainer) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("update")

    assert steps.optimizers is not None
    steps.optimizers.members[-1].register_step_pre_hook(fail)


def failing_backward(steps: Trainer) -> None:
    def fail(_: torch.Tensor) -> None:
        raise ZeroDivisionError("backward")

    (weight,) = (each for each in steps.placed.module.parameters() if len(each) == ROWS)
    weight.register_hook(fail)


def failing_dense(steps: Trainer) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("dense")

    steps.placed.module.get_submodule("linear").register_forward_pre_hook(fail)


@pytest.mark.parametrize("plant", [failing_update, failing_backward, failing_dense])
def test_an_exception_in_a_stage_ends_the_run_with_its_own_traceback(
    plant: Callable[[Trainer], None],
) -> None:
    steps = trainer(pipeline=True, lookahead=3)
    batches = [batch(ids) for ids in power_law(20)]
    trained(steps, batches[:5])
    plant(steps)
    with pytest.raises(ZeroDivisionError) as caught:
        trained(steps, batches[5:])
    assert "in fail" in "".join(traceback.format_exception(caught.value))


def test_an_exception_in_a_lookup_is_raised_in_its_step_with_the_traceback_of_the_lookup() -> None:
    steps = trainer(pipeline=True)
    batches = [batch(ids) for ids in power_law(6)]
    batches[4].inputs[0][0] = ROWS
    done: list[torch.Tensor] = []
    step = steps.step
    steps.step = lambda each: (result := step(each), done.append(result))[0]  # type: ignore[method-assign]
    with pytest.raises(IndexError) as caught:
        trained(steps, batches)
    assert len(done) == 4
    assert "_read_ahead" in "".join(traceback.format_exception(caught.value))


def test_an_exception_of_the_data_ends_the_run() -> None:
    def source() -> Iterator[Batch]:
        yield from (batch(ids) for ids in power_law(5))
        raise ZeroDivisionError("data")

    steps = trainer(pipeline=True)
    with pytest.raises(ZeroDivisionError, match="data"):
        trained(steps, source())


def test_ctrl_c_ends_a_step_that_waits_for_a_lookup() -> None:
    steps = trainer(pipeline=True)
    ahead = look_ahead(steps)
    read, calls = ahead._read_ahead, []

    def interrupt(each: Batch) -> Any:
        calls.append(each)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return read(each)

    ahead._read_ahead = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trained(steps, [batch(ids) for ids in power_law(200)])
    assert len(calls) < 200


def test_a_loop_that_ends_early_leaves_no_thread() -> None:
    steps = trainer(pipeline=True, lookahead=3)
    with closing(look_ahead(steps).ahead([batch(ids) for ids in power_law(9)])) as ahead:
        for number, each in enumerate(ahead):
            steps.step(each)
            if number == 4:
                assert threads() != []
                break


# --- what is refused, before a run opens ------------------------------------------------------------


class Computes(nn.Module):
    """Computes its ids, outside or inside of its host module."""

    def __init__(
        self, inside: bool = False, draws: bool = False, mixes: bool = False, writes: bool = False
    ) -> None:
        super().__init__()
        self.embedding = Host(draws, mixes, writes)
        self.linear = nn.Linear(DIM, 10)
        self.inside = inside

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(ROWS, (samples,), generator=generator)
        return ids, ids % 10

    def forward(self, ids: torch.Tensor) -> Any:
        return self.linear(self.embedding(ids if self.inside else (ids + 1) % ROWS))


class Host(nn.Module):
    def __init__(self, draws: bool, mixes: bool, writes: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, DIM)
        self.draws, self.mixes, self.writes = draws, mixes, writes

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.writes:
            ids.remainder_(ROWS)
        if self.draws:
            ids = torch.where(torch.rand(len(ids)) < 0.5, ids, 0)
        vectors: torch.Tensor = self.table((ids + 1) % ROWS)
        return vectors * ids.unsqueeze(1) if self.mixes else vectors


class Renormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM, max_norm=1.0)
        self.linear = nn.Linear(DIM, 10)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.linear(self.embedding(ids))


class Scaled(nn.Embedding):
    """As the embeddings of some models of Hugging Face."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 8


class WithScaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = Scaled(ROWS, DIM), nn.Linear(DIM, 10)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.linear(self.embedding(ids))


class Momentum(torch.optim.SparseAdam):
    """Moves every row that it ever had a gradient of."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for table in self.param_groups[0]["params"]:
            past = self.state[table].setdefault("past", torch.zeros_like(table))
            if table.grad is not None:
                past.add_(table.grad)
                table.sub_(past, alpha=0.1)


def momentum(parameters: Any) -> Momentum:
    return Momentum(list(parameters))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sparse": False}, ["--pipeline", "writes to every row", "add --sparse"]),
        ({"host": ("linear",), "sparse": True}, ["has parameters that are not tables (weight, bias)"]),
        ({"model": f"{HERE}:Computes"}, ["the model computes the input of Host", "Compute it in the data"]),
        ({"model": f"{HERE}:Computes:inside=True,draws=True"}, ["'embedding' draws random numbers"]),
        ({"model": f"{HERE}:Computes:inside=True,mixes=True"}, ["'embedding' computes from its vectors"]),
        ({"model": f"{HERE}:Computes:inside=True,writes=True"}, ["writes to the tensors of the batch"]),
        ({"model": f"{HERE}:Renormed"}, ["max_norm", "write to the table", "--serial"]),
        ({"model": f"{HERE}:WithScaled"}, ["computes more than a lookup in its forward"]),
        ({"pipeline": False, "lookahead": 2}, ["--lookahead 2 needs --pipeline"]),
        ({"optimizer": f"{HERE}:momentum"}, ["changes rows of a table that have no gradient", "sgd, adam"]),
        ({"optimizer": "momentum"}, ["momentum changes every row"]),
    ],
)
def test_what_cannot_be_looked_up_ahead_exactly_is_refused(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(config(**{"pipeline": True} | values))
    assert all(word in str(caught.value) for word in words), caught.value


def test_ids_that_a_host_module_computes_are_looked_up_ahead() -> None:
    steps = trainer(pipeline=True, model=f"{HERE}:Computes:inside=True")
    assert trained(steps, [batch(ids) for ids in power_law(9)])
    assert look_ahead(steps).rows_ahead == 6 * (9 - FIRST)


def test_data_that_draw_from_the_global_generator_are_refused() -> None:
    steps = trainer(pipeline=True)
    drawing = (batch(torch.randint(ROWS, (6,))) for _ in range(5))
    with pytest.raises(ConfigError, match="--pipeline reads a batch before the steps that precede it"):
        trained(steps, drawing)
