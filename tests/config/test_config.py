"""RunConfig: frozen, complete, and with clear errors for what it does not accept."""

import dataclasses
from dataclasses import replace

import pytest

from dpexp.config.errors import ConfigError
from dpexp.config.process import home
from dpexp.config.run_config import RunConfig, known_options, option_names, options_with_role
from dpexp.config.strategy_options import STRATEGY_OPTIONS, BlockOptions, HybridOptions


def test_every_strategy_round_trips_through_its_flat_dict() -> None:
    for strategy in STRATEGY_OPTIONS:
        config = RunConfig(strategy, virtual=2, batch_size=7)
        assert RunConfig.from_dict(config.to_dict()) == config


def test_the_flat_dict_names_every_option_once() -> None:
    flat = RunConfig("hybrid", options=HybridOptions(sparse=True)).to_dict()
    assert list(flat) == ["strategy", *option_names("hybrid")]
    assert flat["sparse"] is True
    assert flat["host"] == ["embedding"]


def test_options_may_be_a_plain_mapping() -> None:
    config = RunConfig("block", options={"block": ["block1", "block3"]})
    assert config.options == BlockOptions(("block1", "block3"))


def test_the_default_model_follows_the_strategy() -> None:
    assert [RunConfig(name).model for name in ("single", "whole", "block", "functional", "hybrid")] == [
        "linear",
        "linear",
        "blocks",
        "linear",
        "embedding",
    ]


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig("single").seed = 1  # type: ignore[misc]


def test_the_digest_depends_on_every_value() -> None:
    config = RunConfig("single")
    assert config.digest() == RunConfig("single").digest()
    assert config.digest() != RunConfig("single", seed=1).digest()
    assert config.digest() != RunConfig("single", options={}, lr=0.02).digest()
    assert RunConfig("hybrid").digest() != RunConfig("hybrid", options={"sparse": True}).digest()


def test_renamed_devices_keep_the_other_options() -> None:
    options = RunConfig("place", options={"place": ["block2=cuda:1"]}).options
    assert options.with_devices({"cuda:1": "cpu:1"}) == replace(options, place=("block2=cpu:1",))


def test_options_of_tracking_and_labels_do_not_make_another_config() -> None:
    assert options_with_role("delivery", "label") == {"track", "track_timeout", "experiment", "run_name"}
    assert options_with_role("label") == {"experiment", "run_name"}


@pytest.mark.parametrize("strategy", list(STRATEGY_OPTIONS))
def test_every_option_has_one_role(strategy: str) -> None:
    roles = [options_with_role(role) for role in ("run", "delivery", "label")]
    for name in option_names(strategy):
        assert sum(name in names for names in roles) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"strategy": "hybird"}, ["strategy 'hybird'", "did you mean 'hybrid'?", "functional"]),
        ({"backend": "nccl"}, ["--backend 'nccl'", "portable"]),
        ({"batch_size": True}, ["'batch_size' takes a whole number, found True"]),
        ({"options": {"sparse": True}}, ["unknown option 'sparse'"]),
        ({"options": HybridOptions()}, ["options of single are a SingleOptions, not a HybridOptions"]),
        ({"strategy": "block", "options": {"block": []}}, ["--block", "at least one"]),
    ],
)
def test_bad_values_name_the_option_the_value_and_what_is_valid(
    values: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig(**{"strategy": "single", **values})  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({}, ["no 'strategy'"]),
        (
            {"strategy": "single", "batchsize": 3},
            ["unknown key", "'batchsize'", "did you mean 'batch_size'?"],
        ),
        ({"strategy": "single", "sparse": True}, ["unknown key for single 'sparse'"]),
        ({"strategy": "hybrid", "sparse": 1}, ["'sparse' takes true or false, found 1"]),
        (
            {"strategy": "hybrid", "host": "embedding"},
            ["'host' takes a list of texts, as", "found 'embedding'"],
        ),
    ],
)
def test_a_flat_dict_with_an_error_is_refused(flat: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict(flat)
    for word in words:
        assert word in str(caught.value)


def test_from_dict_names_where_a_bad_value_stands() -> None:
    flat = {"strategy": "single", "steps": 0}
    with pytest.raises(ConfigError, match=r"^--config a\.toml: --steps 0: it must be at least 1$"):
        RunConfig.from_dict(flat, where="--config a.toml")
    with pytest.raises(ConfigError, match=r"^--steps 0: it must be at least 1$"):
        RunConfig.from_dict(flat, where="")


def test_whole_numbers_are_accepted_as_floats() -> None:
    assert RunConfig.from_dict({"strategy": "single", "lr": 1}).lr == 1.0


def test_home_is_absolute_and_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPEXP_HOME", "somewhere")
    assert home().is_absolute()
    assert home().name == "somewhere"
    monkeypatch.delenv("DPEXP_HOME")
    assert (home() / "dpexp" / "run.py").is_file()


def test_options_of_a_record_that_went_are_ignored() -> None:
    recorded = RunConfig("whole", virtual=2).to_dict()
    assert known_options(recorded | {"went": 1}) == recorded
