"""Metrics of the user: of all rows, the same in every layout, by epoch and in MLflow."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.in_ranks import records
from helpers.launching import run
from helpers.mlflow_reader import expected_metrics
from torch import nn

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.record.record import Record

ROWS, HELD_OUT, EPOCHS = 90, 50, 2


def macro_f1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Not a mean over rows: that of parts of them is another."""
    found, classes = outputs.argmax(1), torch.arange(3)[:, None]
    hits = ((found == classes) & (targets == classes)).sum(1)
    return (2 * hits / ((found == classes).sum(1) + (targets == classes).sum(1)).clamp(min=1)).mean()


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(ROWS + HELD_OUT, 6, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.5).long()


def train() -> tuple[torch.Tensor, ...]:
    return tuple(each[:ROWS] for each in samples())


def held_out() -> tuple[torch.Tensor, ...]:
    return tuple(each[ROWS:] for each in samples())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block1, self.block2 = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.block2(self.block1(inputs).relu())


class Measured(Net):
    """What ``metrics`` gives to ``dpexp.run`` as a method, for a command line."""

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"f1": macro_f1(outputs, targets)}


def both(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """For ``--metrics``, of rows that are trained on."""
    return {"f1": float(macro_f1(outputs, targets)), "rows": len(outputs)}


SHORT: dict[str, Any] = {"warmup": 0, "phase_steps": 0, "lr": 0.5, "check": False, "track": False}


def run_with(strategy: str, **options: Any) -> Record:
    given = {"model": Net, "data": train(), "epochs": EPOCHS, "quiet": True}
    return dpexp.run(strategy, **(SHORT | given | options))


def test_metrics_are_those_of_all_rows_and_the_same_over_replicas_and_ranks(dpexp_home: Path) -> None:
    by_dict = {"validation": held_out(), "metrics": {"f1": macro_f1}}
    single = run_with("single", devices="cpu", **by_dict)
    whole = run_with("whole", virtual=2, **by_dict)
    files = {"model": "Measured", "data": "train", "validation": "held_out"}
    named = {option: f"{__file__}:{name}" for option, name in files.items()}
    (ddp,) = records(2, SHORT | named | {"strategy": "ddp", "epochs": EPOCHS, "batch_size": 30})
    assert single.metrics.keys() == {"accuracy", "validation_loss", "validation_f1"}
    for other in (whole, ddp):
        assert other.metrics["validation_f1"] == single.metrics["validation_f1"]
        assert other.metrics["accuracy"] == single.metrics["accuracy"]
        assert other.metrics["validation_loss"] == pytest.approx(single.metrics["validation_loss"], rel=1e-6)
    assert [len(values) for values in single.metrics.values()] == [EPOCHS] * 3
    assert expected_metrics(ddp)["validation_f1"] == dict(enumerate(single.metrics["validation_f1"]))


def test_without_rows_that_are_held_out_metrics_are_of_the_rows_of_the_epoch(dpexp_home: Path) -> None:
    found = run_with("single", devices="cpu", metrics=both, steps=2, epochs=None, batch_size=30)
    assert found.metrics.keys() == {"train_f1", "train_rows"}
    assert found.metrics["train_rows"] == [60.0], "of two steps, not of the three of an epoch"


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"val/mean@1": macro_f1}, "the name 'val/mean@1' must have"),
        ({"f1": lambda outputs, targets: outputs}, "making numbers of what they return"),
        (macro_f1, "returns a Tensor, not a dict"),
    ],
)
def test_metrics_of_another_form_are_refused_before_the_run(
    dpexp_home: Path, metrics: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_with("single", devices="cpu", metrics=metrics)
    assert not (dpexp_home / "runs").exists()


def logging_metrics(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    import mlflow

    mlflow.log_metric("f1", float(macro_f1(outputs, targets)))
    return {"rows": float(len(outputs))}


def test_metrics_that_log_to_mlflow_by_themselves_are_named(dpexp_home: Path, tmp_path: Path) -> None:
    words = ("--model", f"{__file__}:Net", "--data", f"{__file__}:train")
    words += ("--metrics", f"{__file__}:logging_metrics")
    done = run("single", *words, "--steps", "2", MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/users.db")
    assert done.returncode == 0
    assert done.stderr.count("log to MLflow by themselves (mlflow.log_metric or alike), in run ") == 1
    assert f"in sqlite:///{tmp_path}/users.db" in done.stderr


def test_metrics_may_be_undefined_on_few_rows(dpexp_home: Path) -> None:
    def of_all(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        if len(outputs) < HELD_OUT:
            raise ValueError("too few rows")
        return 1.0

    found = run_with("single", devices="cpu", validation=held_out(), metrics={"auc": of_all})
    assert found.metrics["validation_auc"] == [1.0] * EPOCHS
