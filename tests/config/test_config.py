"""RunConfig: frozen, complete, and with clear errors for what it does not accept."""

import dataclasses
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from dpexp.config import names
from dpexp.config.errors import ConfigError
from dpexp.config.options import option_fields
from dpexp.config.process import home
from dpexp.config.run_config import RunConfig, known_options, option_names
from dpexp.config.strategy_options import STRATEGY_OPTIONS, BlockOptions, HybridOptions


@pytest.mark.parametrize("strategy", list(STRATEGY_OPTIONS))
def test_every_strategy_round_trips_through_its_flat_dict(strategy: str) -> None:
    config = RunConfig(strategy, virtual=2, batch_size=7)
    flat = config.to_dict()
    assert RunConfig.from_dict(flat) == config
    assert list(flat) == ["strategy", *option_names(strategy)]
    assert known_options(flat | {"went": 1}) == flat


def test_options_may_be_a_plain_mapping_and_lists_are_tuples() -> None:
    config = RunConfig("block", options={"block": ["block1", "block3"]})
    assert config.options == BlockOptions(("block1", "block3"))
    assert config.to_dict()["block"] == ["block1", "block3"]


def test_the_default_model_follows_the_strategy() -> None:
    models = {name: RunConfig(name).model for name in STRATEGY_OPTIONS}
    of_linear = [name for name, model in models.items() if model == "linear"]
    assert (of_linear, models["hybrid"]) == (["single", "whole", "functional", "ddp"], "embedding")


def test_a_config_cannot_be_changed_and_its_digest_depends_on_every_value() -> None:
    config = RunConfig("single")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]
    assert config.digest() == RunConfig("single").digest()
    assert config.digest() != RunConfig("single", seed=1).digest()
    assert RunConfig("hybrid").digest() != RunConfig("hybrid", options={"sparse": True}).digest()


def test_renamed_devices_keep_the_other_options() -> None:
    options = RunConfig("place", options={"place": ["block2=cuda:1"]}).options
    assert options.with_devices({"cuda:1": "cpu:1"}) == replace(options, place=("block2=cpu:1",))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"strategy": "hybird"}, ["unknown strategy 'hybird'", "did you mean 'hybrid'?", "functional"]),
        ({"backend": "nccl"}, ["--backend 'nccl'", "portable"]),
        ({"batch_size": True}, ["'batch_size' takes a whole number, found True"]),
        ({"lr": "fast"}, ["'lr' takes a number, found 'fast'"]),
        ({"lr": float("nan")}, ["--lr nan: it must be a finite number"]),
        ({"steps": 0}, ["--steps 0: it must be at least 1"]),
        ({"virtual": 2, "devices": "cpu"}, ["--virtual 2 emulates devices and --devices cpu names real"]),
        ({"batchsize": 3}, ["unknown option of single 'batchsize'", "did you mean 'batch_size'?"]),
        ({"sparse": True}, ["unknown option of single 'sparse'"]),
        ({"strategy": "hybrid", "host": "embedding"}, ["'host' takes a list of texts", "found 'embedding'"]),
        ({"strategy": "block", "block": []}, ["--block", "at least one"]),
    ],
)  # fmt: skip
def test_bad_values_name_the_option_the_value_and_what_is_valid(
    values: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict({"strategy": "single", **values}, where="--config a.toml")
    assert str(caught.value).startswith("--config a.toml: ")
    for word in words:
        assert word in str(caught.value)


VALUES = [None, True, -1, 2**64, 0.5, 1e300, float("nan"), float("inf"), "", "x", "\n", "x" * 9999, b"x"]
VALUES += [[], [""], [1], ["x"], {}, {"a": 1}, object()]


def test_every_value_of_every_option_is_taken_or_refused_in_a_short_message() -> None:
    messages = []
    for strategy, options in [("single", RunConfig), *STRATEGY_OPTIONS.items()]:
        for field, value in product(option_fields(options), VALUES):
            try:
                RunConfig.from_dict({"strategy": strategy, field.name: value})
            except ConfigError as error:
                messages.append(str(error))
    assert len(messages) > 500
    assert max(map(len, messages)) < 500


def test_options_of_another_strategy_and_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="options of single are a SingleOptions, not a HybridOptions"):
        RunConfig("single", options=HybridOptions())
    with pytest.raises(ConfigError, match=r"^unknown strategy ''"):
        RunConfig.from_dict({}, where="")


def test_home_is_absolute_and_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPEXP_HOME", "somewhere")
    assert home().is_absolute()
    assert home().name == "somewhere"
    monkeypatch.delenv("DPEXP_HOME")
    assert (home() / "dpexp" / "run.py").is_file()


# --- names of experiments and runs: the good ones stay, every other name is refused or fitted ---

GOOD = ("dpexp", "a/b", "/Users/me@example.com/experiment", "5", "naïve 実験 💥", "x" * 250, "..a", "a b")
BAD = (
    *(" ", "   ", ".", "..", "...", ". .", "x" * 251, "x" * 300, "x" * 5000, "a\nb", "\r", "\0", "a\x00b"),
    *("\x1b[31m", "\x7f", "\x85", "a\u2028b", "\ud800", "a\udfff", "\n" * 300),
)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_stays(name: str) -> None:
    config = RunConfig("single", experiment=name, run_name=name)
    assert (config.experiment, config.run_name) == (name, name)
    assert names.fitted(name, "default") == name


@pytest.mark.parametrize("name", BAD, ids=ascii)
@pytest.mark.parametrize("option", ["experiment", "run_name"])
def test_a_name_that_no_store_can_hold_is_refused(option: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{option.replace('_', '-')} .{{,130}}: it must ") as raised:
        RunConfig.from_dict({"strategy": "single", option: name}, where="")
    assert len(str(raised.value)) < 250


def test_every_name_is_fitted_to_a_good_one_and_has_a_folder_of_its_own() -> None:
    assert not any(names.name_problem(names.fitted(name, "default")) for name in (*GOOD, *BAD))
    folders = {names.folder_name(name) for name in (*GOOD, *BAD)}
    assert len(folders) == len(GOOD + BAD)
    assert all(folder.isascii() and len(folder) <= 80 and folder[0] != "." for folder in folders)
