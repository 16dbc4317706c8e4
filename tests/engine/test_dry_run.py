"""Dry run: the shapes of a run without running it, and layouts that mix devices."""

import json
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_lines import HELPERS
from torch import Tensor, nn

import dpexp
from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.engine.prediction import PlacementError, dry_run, predict
from dpexp.engine.prepare import prepare
from dpexp.measurement.observe import device_map, observe
from dpexp.record.record import Record, Row
from dpexp.timing import Timer

MIXING = f"{HELPERS / 'user_error_cases.py'}:TwoDevices"
LAYOUTS: list[tuple[str, Any]] = [
    ("single", {}),
    ("whole", {}),
    ("functional", {}),
    ("block", {"block": ["FIRST"]}),
    ("hybrid", {"host": ["FIRST"]}),
    ("place", {"place": ["FIRST=cpu:1"]}),
]


class Model(nn.Module):
    """Inputs of 5 numbers, targets of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 2), nn.Linear(5, 2)

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x)


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "strategy", "options"),
    [("blocks", *layout) for layout in LAYOUTS] + [(model, "whole", {}) for model in ("rnn", "dlrm")],
    ids=str,
)
def test_predicted_shapes_are_those_of_the_run(model: str, strategy: str, options: Any) -> None:
    single = prepare(RunConfig("single", model=model, batch_size=7, devices="cpu"))
    first = next(name for name, _ in single.model.named_children())
    chosen = {key: [name.replace("FIRST", first) for name in names] for key, names in options.items()}
    count = 1 if strategy == "single" else 3
    prepared = prepare(RunConfig(strategy, model=model, batch_size=7, virtual=count, options=chosen))
    batches = list(islice(prepared.batches(0), 2))
    predicted = predict(prepared, batches)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    assert without_packed(predicted.shapes) == without_packed(
        observe(placed, batches, prepared.data.objective.loss, gradients=True)
    )
    assert predicted.note == ""
    assert predicted.device_map == device_map(placed)


def without_packed(rows: list[Row]) -> list[Row]:
    """Without the inputs of the LSTM inside ``rnn``: the length of a packed batch depends on values."""
    return [row for row in rows if not row["module"].endswith("cells")]


class LooksAtValues(Model):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if x.sum().item() > 0 else 2)


def test_a_model_that_looks_at_values_runs_on_virtual_devices_and_the_note_reports_it() -> None:
    prepared = prepare(RunConfig("whole", model=f"{__file__}:LooksAtValues", virtual=2))
    batches = [next(prepared.batches(0))]
    predicted = predict(prepared, batches)
    assert "on tensors without data: real batches ran" in predicted.note
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    assert predicted.shapes == observe(placed, batches, prepared.data.objective.loss, gradients=True)


# --- devices --------------------------------------------------------------------------------------

PLANNED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("whole", {}, ["cuda:0", "cuda:1"]),
    ("hybrid", {}, ["cpu", "cuda:0", "cuda:1"]),
    ("place", {"place": ["block1=cuda:1"]}, ["cuda:0", "cuda:1"]),
    ("fsdp", {}, ["cuda:0", "cuda:1"]),
]
NAMES = re.compile(r'"(cpu:\d+)"')


@pytest.mark.skipif(bool(devices.accelerators()), reason="for machines without accelerators")
@pytest.mark.parametrize(("strategy", "options", "used"), PLANNED, ids=[case[0] for case in PLANNED])
def test_a_dry_run_for_devices_that_are_not_here_is_that_of_virtual_ones(
    strategy: str, options: dict[str, Any], used: list[str]
) -> None:
    planned = dry_run(RunConfig(strategy, devices="cuda:0,cuda:1", options=options))
    virtual = json.loads(json.dumps(options).replace("cuda", "cpu"))
    emulated = dry_run(RunConfig(strategy, virtual=2, options=virtual))
    assert (planned.status, planned.execution, emulated.execution) == ("planned", "planned", "virtual")
    assert planned.devices["used"] == used
    assert "planned for cuda:0" in planned.verification["note"]
    for there, here in ((planned.device_map, emulated.device_map), (planned.shapes, emulated.shapes)):
        renamed = NAMES.sub(lambda name: f'"{name[1].replace("cpu", "cuda")}"', json.dumps(here))
        assert there == json.loads(renamed)


@pytest.mark.parametrize(("named", "ranks"), [({"devices": "100"}, 100), ({"virtual": 4}, 4)])
def test_a_dry_run_of_ranks_names_the_device_of_each(named: dict[str, Any], ranks: int) -> None:
    planned = dry_run(RunConfig("ddp", data="random:samples=1000", batch_size=1000, **named))
    assert planned.name == f"ddp-linear-{ranks}xcpu"
    assert planned.devices["used"] == [f"cpu:{rank}" for rank in range(ranks)]
    assert f"that of one process; {ranks} ranks share the batches" in planned.verification["note"]


@pytest.mark.parametrize("count", [None, 2])
def test_a_dry_run_is_the_record_of_the_run_before_it_begins(count: int | None, dpexp_home: Path) -> None:
    """What it knows of a run is what the run records."""
    config = RunConfig("place", virtual=count, devices="cpu" if count is None else "auto", track=False)
    config = replace(config, options=replace(config.options, place=("block2=cpu",)))
    planned = dry_run(config)
    assert not list(dpexp_home.iterdir())
    ran = dpexp.run(config, quiet=True)
    for key in ("name", "execution", "config", "files", "data", "devices", "device_map", "shapes"):
        assert getattr(planned, key) == getattr(ran, key), key
    first = "cpu" if count is None else "cpu:0"
    assert [row["device"] for row in ran.device_map] == [first, first, "cpu", "cpu", first, first]
    assert Record.from_json(planned.to_json()) == planned


# --- layouts that mix devices ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "where", "named"),
    [
        (["first=cpu", "second=cpu:1"], {"virtual": 2}, ("cpu", "cpu:1")),
        (["first=cpu:1"], {"virtual": 2}, ("cpu:1", "cpu:0")),
        (["first=cuda:0", "second=cuda:1"], {"devices": "cuda:0,cuda:1"}, ("cuda:0", "cuda:1")),
    ],
)
def test_a_layout_that_mixes_devices_is_refused_with_both_devices_and_the_line(
    place: list[str], where: dict[str, Any], named: tuple[str, str]
) -> None:
    with pytest.raises(PlacementError) as caught:
        dry_run(RunConfig("place", model=MIXING, options={"place": place}, **where))
    message = str(caught.value)
    assert re.search(r"user_error_cases\.py:\d+ \(return self\.second\(self\.first\(x\)\) \+", message)
    assert set(named) <= set(re.findall(r"\b(?:cpu|cuda)(?::\d)?", message))


class Rotary(nn.Module):
    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(5)) if buffer else setattr(self, "table", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table


class Rotates(Model):
    """With a plain tensor, unless it is a ``buffer``, and with one that the forward has ``made``."""

    def __init__(self, buffer: bool = False, made: bool = False) -> None:
        super().__init__()
        self.first, self.rotary, self.head = nn.Linear(5, 5), Rotary(buffer), nn.Linear(5, 2)
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        x = self.rotary(self.first(x))
        return self.head(x) * torch.ones(2, device=None if self.made else x.device)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("whole", {"virtual": 2}),
        ("hybrid", {"virtual": 1, "host": ("first",)}),
        ("place", {"virtual": 1, "place": ("first=cpu",)}),
    ],
)
def test_a_tensor_that_stays_on_the_host_is_refused_before_an_emulated_run(
    strategy: str, options: Any, dpexp_home: Path
) -> None:
    def run(more: str, **where: Any) -> Any:
        model = f"{__file__}:Rotates{more}"
        return dpexp.run(strategy, model=model, steps=2, warmup=1, track=False, quiet=True, **where)

    plain = r"\(return x \* .*\): put .* a plain tensor stays on the host: make it a buffer"
    with pytest.raises(PlacementError, match=plain):
        run("", **options)
    with pytest.raises(PlacementError, match=r"test_dry_run\.py:\d+ \(return .* torch\.ones\("):
        run(":buffer=True,made=True", **options)
    assert not list(dpexp_home.rglob("journal.jsonl"))
    assert run(":buffer=True", **options).status == "finished"
    if strategy == "whole":
        assert run("", devices="cpu").status == "finished", "all is on the host"
