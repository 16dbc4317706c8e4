"""The step profile: memory by category against closed forms, FLOPs, and a run that it does not change."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.engine_runs import recorded
from helpers.in_ranks import records
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.measurement.observe import size_of
from dpexp.record.record import Record, Row
from dpexp.report import summary

DEPTH, WIDTH, ROWS = 4, 16, 12
FLOAT = 4
PARAMETERS = DEPTH * (WIDTH * WIDTH + WIDTH) * FLOAT
SHORT: dict[str, Any] = {"steps": 2, "warmup": 1, "phase_steps": 1, "check": False, "batch_size": ROWS}


class Chain(nn.Module):
    """Linear layers of one width; every one but the first saves its input. The loss is the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(x)
        return outputs

    def loss(self, outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return outputs.sum()

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, WIDTH, generator=generator), torch.zeros(samples)


class Shy(Chain):
    """Does not stand to be observed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise ValueError("somebody is looking")
        return super().forward(x)


def profiled(home: Path, strategy: str, run_id: str = "run", model: str = "Chain", **options: Any) -> Record:
    config = RunConfig(strategy, model=f"test_step_profile:{model}", **{**SHORT, **options})
    return recorded(home, config, run_id)


def only_row(record: Record) -> Row:
    (row,) = record.memory_use
    return row


def test_the_memory_of_a_chain_is_its_closed_form(dpexp_home: Path) -> None:
    row = only_row(profiled(dpexp_home, "single", devices="cpu", optimizer="adam"))
    assert row == {
        "device": "cpu",
        "parameters": PARAMETERS,
        "buffers": 0,
        "gradients": PARAMETERS,
        "optimizer": 2 * PARAMETERS,
    }


def test_parameters_of_fsdp_are_those_of_the_shard(dpexp_home: Path) -> None:
    (found,) = records(2, SHORT | {"strategy": "fsdp", "block": ["layers.*"], "model": f"{__file__}:Chain"})
    assert [row["parameters"] for row in found.memory_use] == [PARAMETERS // 2] * 2


@pytest.mark.gpu
def test_on_cuda_the_allocator_has_the_peak_of_training(dpexp_home: Path) -> None:
    row = only_row(profiled(dpexp_home, "single", devices="cuda:0", optimizer="adam"))
    assert row["device"] == "cuda:0"
    assert (row["parameters"], row["gradients"], row["optimizer"]) == (PARAMETERS, PARAMETERS, 2 * PARAMETERS)
    assert 4 * PARAMETERS <= row["peak"] <= row["reserved"]


def test_only_the_looked_up_rows_of_a_sparse_table_have_gradients(dpexp_home: Path) -> None:
    config = RunConfig("hybrid", model="embedding:dim=4", virtual=1, options={"sparse": True}, **SHORT)
    found = {row["device"]: row for row in recorded(dpexp_home, config).memory_use}
    assert found["cpu"]["gradients"] == ROWS * (8 + 4 * FLOAT)  # indices and values
    assert size_of(torch.empty(10**9, 1000, device="meta")) == 4 * 10**12


def test_flops_are_those_of_the_products_of_all_replicas(dpexp_home: Path) -> None:
    found, product = profiled(dpexp_home, "whole", virtual=3).work, 2 * ROWS * WIDTH * WIDTH
    assert found["rows"] == ROWS
    # backward has a product for the weights, and but for the first layer one for the inputs
    assert found["flops"] == {"forward": DEPTH * product, "backward": (2 * DEPTH - 1) * product}


class Recurrent(Chain):
    """Chain, and a recurrent layer, one operator whose products PyTorch does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.rnn(self.layers(x))[0]
        return outputs


def test_flops_are_given_only_if_all_products_are_counted(dpexp_home: Path) -> None:
    record = profiled(dpexp_home, "single", model="Recurrent", devices="cpu")
    assert record.work["flops"] == {}
    assert "flops_per_s" not in record.summary
    words = " ".join(summary(record, full=True).split())  # lines end where the times before are long
    assert f"no formula for {record.work['uncounted'][0]}" in words


def test_what_cannot_be_observed_is_left_out(dpexp_home: Path) -> None:
    record = profiled(dpexp_home, "single", model="Shy", devices="cpu")
    assert record.status == "finished"
    assert "somebody is looking" in record.work["note"]
    assert set(only_row(record)) == {"device", "parameters", "buffers", "optimizer"}
    assert "flops" not in record.work


def test_a_forward_only_run_has_no_gradients(dpexp_home: Path) -> None:
    record = profiled(dpexp_home, "single", devices="cpu", eval=True)
    assert (only_row(record)["gradients"], only_row(record)["optimizer"]) == (0, 0)
    assert set(record.work["flops"]) == {"forward"}


def test_tokens_are_counted_where_the_loss_counts_them(dpexp_home: Path) -> None:
    words: dict[str, Any] = (
        {"model": "rnn", "data": "random:samples=40", "devices": "cpu"} | SHORT | {"batch_size": 20}
    )
    record = recorded(dpexp_home, RunConfig("single", reduction="tokens", **words))
    steps = record.summary["step_ms"]["median"] / 1000
    assert record.work["tokens"] >= 20
    assert record.summary["tokens_per_s"] == pytest.approx(record.work["tokens"] / steps)
    rows = recorded(dpexp_home, RunConfig("single", **words), "rows")
    assert "tokens" not in rows.work
