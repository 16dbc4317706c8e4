"""What the callback of Lightning leaves, records and refuses."""

import copy
import pickle
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning_modules import QUIET, Manual, Module, Normalized, fit, numbers, of
from test_lightning import Adversarial
from torch.nn import functional
from torch.utils.data import DataLoader

from dpexp.config.errors import ConfigError, VerificationError
from dpexp.integrations.lightning import WatchCallback
from dpexp.record.fold import load_record

pytestmark = pytest.mark.filterwarnings("default")  # Lightning warns of so little data


def test_toggled_optimizers_change_nothing_that_is_warned_of() -> None:
    assert not fit(Adversarial()).warnings


class Spying(pl.Callback):
    """After each batch it copies and saves the module, as users do."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.attributes = set(vars(pl_module))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        twin = pickle.loads(pickle.dumps(copy.deepcopy(pl_module)))
        assert twin.training_step.__self__ is twin
        assert set(vars(pl_module)) == self.attributes


def test_a_watched_fit_computes_the_same_bits_and_leaves_nothing() -> None:
    original, found = functional.mse_loss, []
    for callback in ([], [WatchCallback(steps=2, track=False), Spying()]):
        torch.manual_seed(0)
        module = Normalized()
        pl.Trainer(callbacks=callback, gradient_clip_val=0.1, **QUIET).fit(module, DataLoader(numbers(), 4))
        found.append([each.clone() for each in module.state_dict().values()])
    assert all(map(torch.equal, *found))
    assert functional.mse_loss is original
    assert not [
        each for part in module.modules() for each in (*part._forward_hooks, *part._forward_pre_hooks)
    ]


def test_the_metrics_of_log_are_in_the_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watching = WatchCallback(name="mine")
    trainer = pl.Trainer(callbacks=[watching], **QUIET | {"max_epochs": 2})
    trainer.fit(Module(), DataLoader(numbers(), 4), DataLoader(numbers(8), 4))
    assert "dpexp: right: 4 steps" in capsys.readouterr().out
    assert watching.run is not None
    (folder,) = runs.iterdir()
    metrics = load_record(folder).metrics
    assert {name: len(values) for name, values in metrics.items()} == {"train_loss": 12, "val_loss": 2}


def test_a_finding_is_raised_in_the_step() -> None:
    watching = WatchCallback(track=False, raises=True)
    with pytest.raises(VerificationError, match="zero_grad is missing"):
        pl.Trainer(callbacks=[watching], **QUIET).fit(of(Manual, zeroes=False), DataLoader(numbers(), 4))
    assert watching.run is not None
    assert watching.run.done


def test_each_fit_is_a_watch() -> None:
    watching, module = WatchCallback(track=False), Module()
    trainer = pl.Trainer(callbacks=[watching], **QUIET)
    trainer.fit(module, DataLoader(numbers(), 4))
    first, trainer.fit_loop.max_epochs = watching.run, 2
    trainer.fit(module, DataLoader(numbers(), 4))
    assert first is not None
    assert watching.run is not first
    assert (first.steps, watching.run.steps) == (4, 4)


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="loss is int"):
        WatchCallback(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Module has no function 'criterion'"):
        fit(Module(), "criterion")
