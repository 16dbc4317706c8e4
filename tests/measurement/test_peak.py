"""The machine's peak: measured beside steps of some arithmetic; and tokens per second."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import recorded

from dpexp.config.run_config import RunConfig
from dpexp.measurement.peak import LARGEST, LEAST, product_rates

SHORT: dict[str, Any] = {"steps": 2, "warmup": 0, "phase_steps": 1, "check": False, "devices": "cpu"}


def test_products_of_matrices_are_measured_and_change_no_random_state() -> None:
    state = torch.get_rng_state()
    size, rates = product_rates(torch.device("cpu"), torch.float32)
    assert size <= LARGEST
    assert len(rates) >= LEAST
    assert min(rates) > 0
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_has_the_share_of_the_peak_of_its_dtype_and_a_small_one_has_none(dpexp_home: Path) -> None:
    large: dict[str, Any] = {"model": "mlp:hidden=128", "batch_size": 50, **SHORT}
    assert "peak" not in recorded(dpexp_home, RunConfig("single", **SHORT), "small").work
    record = recorded(dpexp_home, RunConfig("single", **large))
    found = record.work["peak"]
    assert (found["dtype"], found["devices"]) == ("float32", 1)
    assert found["threads"] == torch.get_num_threads()
    expected = record.summary["flops_per_s"] / found["flops_per_s"]["max"]
    assert record.summary["peak_share"] == pytest.approx(expected)
    short = recorded(dpexp_home, RunConfig("single", autocast="bfloat16", **large), "short")
    assert short.work["peak"]["dtype"] == "bfloat16"


def test_tokens_are_counted_where_the_loss_counts_them(dpexp_home: Path) -> None:
    words = {"model": "rnn", "data": "sequences:samples=40", "batch_size": 20}
    record = recorded(dpexp_home, RunConfig("single", reduction="tokens", **words, **SHORT))
    steps = record.summary["step_ms"]["median"] / 1000
    assert record.work["tokens"] >= 20
    assert record.summary["tokens_per_s"] == pytest.approx(record.work["tokens"] / steps)
    rows = recorded(dpexp_home, RunConfig("single", **words, **SHORT), "rows")
    assert "tokens" not in rows.work
