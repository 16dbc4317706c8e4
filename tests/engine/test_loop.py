"""The loop: what a run records, what is refused before it opens, and that a seed determines the bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from command_lines import HELPERS
from engine_runs import recorded

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.measure import RunError
from dpexp.engine.prepare import prepare
from dpexp.verification.equivalence import VerificationError

USER_ERRORS = HELPERS / "user_error_cases.py"


def test_a_record_has_every_measured_step(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, RunConfig("whole", virtual=3, steps=7, warmup=2, phase_steps=5))
    assert {len(values) for values in record.steps.values()} == {7}
    assert record.steps["samples"] == [30, 30, 30, 10, 30, 30, 30]
    assert min(record.steps["time_ms"]) > 0
    assert record.summary["step_ms"]["n"] == 6  # of full batches
    assert list(record.phases) == [
        "scatter",
        "replicate",
        "parallel_apply",
        "gather",
        "loss",
        "backward",
        "optimizer",
    ]
    assert {len(values) for values in record.phases.values()} == {5}
    replicas = [row for row in record.timeline if row["step"] == 0 and row["replica"] is not None]
    assert sorted((row["replica"], row["device"]) for row in replicas) == [
        (0, "cpu:0"),
        (1, "cpu:1"),
        (2, "cpu:2"),
    ]
    assert record.verification["passed"] is True
    assert record.devices == {
        "requested": ["cpu:0", "cpu:1", "cpu:2"],
        "used": ["cpu:0", "cpu:1", "cpu:2"],
        "output": "cpu:0",
    }


@pytest.mark.parametrize(
    ("strategy", "phases"),
    [
        ("single", {"forward", "loss", "backward", "optimizer"}),
        (
            "block",
            {"forward", "scatter", "replicate", "parallel_apply", "gather", "loss", "backward", "optimizer"},
        ),
        ("functional", {"scatter", "replicate", "parallel_apply", "gather", "loss", "backward", "optimizer"}),
        (
            "hybrid",
            {
                "embedding",
                "transfer",
                "dense",
                "scatter",
                "replicate",
                "parallel_apply",
                "gather",
                "loss",
                "backward",
                "optimizer",
            },
        ),
    ],
)
def test_each_strategy_has_its_phases(dpexp_home: Path, strategy: str, phases: set[str]) -> None:
    record = recorded(dpexp_home, RunConfig(strategy, virtual=1 if strategy == "single" else 2, steps=1))
    assert set(record.phases) == phases


def test_the_same_seed_gives_the_same_bits_and_another_gives_others(dpexp_home: Path) -> None:
    first, again = (
        recorded(dpexp_home, RunConfig("hybrid", virtual=3, steps=5), name) for name in ("a", "b")
    )
    other = recorded(dpexp_home, RunConfig("hybrid", virtual=3, steps=5, seed=1), "c")
    assert first.steps["loss"] == again.steps["loss"]
    assert first.digest == again.digest
    assert first.digest["weights"] != other.digest["weights"]
    assert first.digest["outputs"] != other.digest["outputs"]


def test_every_layout_trains_to_the_same_loss(dpexp_home: Path) -> None:
    config = RunConfig("single", steps=8, dtype="float64", devices="cpu")
    expected = recorded(dpexp_home, config, "single").steps["loss"]
    for strategy in ("whole", "functional"):
        config = RunConfig(strategy, steps=8, dtype="float64", virtual=8)
        assert recorded(dpexp_home, config, strategy).steps["loss"] == pytest.approx(expected, rel=1e-12)


def test_eval_runs_forward_only(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, RunConfig("whole", virtual=2, steps=4, eval=True))
    assert "backward" not in record.phases
    assert record.verification["gradient_error"] is None
    assert len(set(record.steps["loss"])) > 1  # other batches, same weights
    assert (
        record.digest == recorded(dpexp_home, RunConfig("whole", virtual=2, steps=1, eval=True), "b").digest
    )


def test_epochs_count_the_data(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, RunConfig("single", epochs=2, devices="cpu"))
    assert record.steps["samples"] == [30, 30, 30, 10] * 2


def test_the_record_shows_no_check(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, RunConfig("whole", virtual=2, steps=1, check=False))
    assert record.verification["checked"] is False
    assert "--no-check" in record.verification["note"]


def test_threads_are_set_and_recorded(dpexp_home: Path) -> None:
    before = torch.get_num_threads()
    try:
        record = recorded(dpexp_home, RunConfig("single", steps=1, threads=1, devices="cpu"))
        assert record.environment["threads"] == 1
    finally:
        torch.set_num_threads(before)


def test_the_cnn_learns_digits_on_replicas(dpexp_home: Path) -> None:
    config = RunConfig("whole", virtual=2, model="cnn", data="digits", epochs=6, lr=0.1)
    record = recorded(dpexp_home, config)
    assert len(record.metrics["accuracy"]) == 6
    assert record.metrics["accuracy"][-1] >= 0.95


def test_hybrid_learns_text(dpexp_home: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    config = RunConfig("hybrid", virtual=1, data=f"text:{book}", steps=60, lr=1.0, options={"sparse": True})
    losses = recorded(dpexp_home, config).steps["loss"]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_step(dpexp_home: Path) -> None:
    with pytest.raises(RunError, match=r"the loss became (inf|nan) in step \d+; .* --lr than 1e\+30"):
        recorded(dpexp_home, RunConfig("single", lr=1e30, devices="cpu"))


def test_a_layout_that_does_not_verify_fails_with_its_error(dpexp_home: Path) -> None:
    with pytest.raises(VerificationError) as caught:
        recorded(dpexp_home, RunConfig("whole", virtual=2, model=f"{USER_ERRORS}:Centered"))
    assert ": step 1 (30 rows): outputs differ by 2.8e-01; " in str(caught.value)
    assert "allowed 1e-12" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "lineer"}, ["'lineer'", "did you mean 'linear'"]),
        ({"model": "linear:inn=3"}, ["'inn'", "in"]),
        ({"data": "digit"}, ["'digit'", "did you mean 'digits'"]),
        ({"data": "text:/nowhere/at/all"}, ["/nowhere/at/all"]),
        ({"model": "linear:in=7", "data": "digits"}, ["module 'fc' (Linear(in_features=7", "got (30, 64)"]),
        ({"model": "linear", "data": "EMPTY"}, ["EMPTY", "empty"]),
        (
            {"model": "embedding:rows=50", "data": "TEXT"},
            ["module 'embedding'", "Embedding(50", "beyond the table of 50 rows"],
        ),
        ({"strategy": "block", "options": {"block": ["nope"]}}, ["--block 'nope'"]),
        ({"dtype": "float16", "model": "FFT"}, ["the model", "(30, 5) float16", "'Half'"]),
    ],
)
def test_a_misfit_is_refused_before_anything_is_written(
    dpexp_home: Path, tmp_path: Path, values: Mapping[str, Any], words: list[str]
) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "text.txt").write_text("some text to read " * 30)
    (tmp_path / "fft.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Linear):\n"
        "    def example(self, samples, generator):\n"
        "        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 5)\n"
        "    def forward(self, x):\n"
        "        return torch.linalg.qr(super().forward(x))[0]\n"
        "def build():\n"
        "    return Model(5, 5)\n"
    )
    paths = {
        "EMPTY": f"text:{tmp_path}/empty.txt",
        "TEXT": f"text:{tmp_path}/text.txt",
        "FFT": f"{tmp_path}/fft.py:build",
    }
    config = RunConfig(
        **{
            "strategy": "single",
            "devices": "cpu",
            **{k: paths.get(v, v) if isinstance(v, str) else v for k, v in values.items()},
        }
    )
    with pytest.raises(ConfigError) as caught:
        prepare(config)
    for text in words:
        assert text.lower() in str(caught.value).lower()
    assert not list(dpexp_home.iterdir())
