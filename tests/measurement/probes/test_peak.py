"""The machine's peak: measured once and kept, and compared only with steps of some arithmetic."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import recorded

from dpexp.config.run_config import RunConfig
from dpexp.engine.dry_run import dry_run
from dpexp.measurement import peak
from dpexp.measurement.peak import FILE, LARGEST, kept_peak, product_rates

HOST = torch.device("cpu")
SHORT: dict[str, Any] = {"steps": 2, "warmup": 0, "phase_steps": 1, "check": False, "devices": "cpu"}
LARGE = "mlp:hidden=128"


def test_a_peak_is_measured_once_for_each_dtype_and_number_of_threads(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = torch.get_rng_state()
    first = kept_peak(dpexp_home / FILE, "a cpu", HOST, torch.float32)
    assert first["flops_per_s"]["n"] >= 3
    assert 0 < first["flops_per_s"]["min"] <= first["flops_per_s"]["median"] <= first["flops_per_s"]["max"]
    assert torch.equal(torch.get_rng_state(), state)
    assert (dpexp_home / FILE).stat().st_mode & 0o077 == 0
    probed = []
    monkeypatch.setattr(peak, "product_rates", lambda _, dtype: (probed.append(dtype), (1, [2.0]))[1])
    assert kept_peak(dpexp_home / FILE, "a cpu", HOST, torch.float32) == first
    assert kept_peak(dpexp_home / FILE, "a cpu", HOST, torch.bfloat16)["flops_per_s"]["max"] == 2
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert kept_peak(dpexp_home / FILE, "a cpu", HOST, torch.float32)["threads"] == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert probed == [torch.bfloat16, torch.float32]


def test_a_peak_that_a_run_has_passed_is_measured_again(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was busy when it was measured; if it is busy now, the larger figure stays."""
    rates = iter([5.0, 9.0, 7.0])
    monkeypatch.setattr(peak, "product_rates", lambda *_: (1, [next(rates)]))
    found = [
        kept_peak(dpexp_home / FILE, "a cpu", HOST, torch.float32, reached)
        for reached in (0.0, 4.0, 6.0, 9.5, 8.0)
    ]
    assert [each["flops_per_s"]["max"] for each in found] == [5, 5, 9, 9, 9]
    assert next(rates, None) is None


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}'])
def test_a_damaged_file_of_peaks_is_measured_again(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(peak, "product_rates", lambda *_: (1, [2.0]))
    (dpexp_home / FILE).write_text(content)
    assert kept_peak(dpexp_home / FILE, "a cpu", HOST, torch.float32)["flops_per_s"]["max"] == 2
    kept = json.loads((dpexp_home / FILE).read_text())
    assert len(kept) == 1
    (dpexp_home / FILE).write_text(json.dumps({key: each | {"flops_per_s": 3} for key, each in kept.items()}))
    assert kept_peak(dpexp_home / FILE, "a cpu", HOST, torch.float32)["flops_per_s"]["max"] == 2


def test_a_probe_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_SECONDS", 0.0)
    size, rates = product_rates(HOST, torch.float64)
    assert (size <= LARGEST, len(rates)) == (True, 3)


def test_a_run_has_the_share_of_the_peak_and_a_small_or_planned_one_measures_nothing(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = 1e15
    monkeypatch.setattr(peak, "product_rates", lambda *_: (512, [rate / 2, rate, rate / 2]))
    recorded(dpexp_home, RunConfig("single", **SHORT), "small")
    dry_run(RunConfig("single", model=LARGE, devices="cpu"))
    assert not (dpexp_home / FILE).exists()
    record = recorded(dpexp_home, RunConfig("single", model=LARGE, batch_size=50, **SHORT))
    found = record.work["peak"]
    assert (found["dtype"], found["devices"], found["size"]) == ("float32", 1, 512)
    assert found["threads"] == torch.get_num_threads()
    assert record.summary["peak_share"] == pytest.approx(record.summary["flops_per_s"] / rate)
    autocast = RunConfig("single", model=LARGE, batch_size=50, autocast="bfloat16", **SHORT)
    assert recorded(dpexp_home, autocast, "short").work["peak"]["dtype"] == "bfloat16"


def test_tokens_are_counted_where_the_loss_counts_them(dpexp_home: Path) -> None:
    words = {"model": "rnn", "data": "sequences:samples=40", "batch_size": 20}
    record = recorded(dpexp_home, RunConfig("single", reduction="tokens", **words, **SHORT))
    steps = record.summary["step_ms"]["median"] / 1000
    assert record.work["tokens"] >= 20
    assert record.summary["tokens_per_s"] == pytest.approx(record.work["tokens"] / steps)
    rows = recorded(dpexp_home, RunConfig("single", **words, **SHORT), "rows")
    assert "tokens" not in rows.work
