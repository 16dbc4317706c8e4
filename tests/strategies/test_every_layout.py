"""Every model under every strategy, over three devices, computes what it computes on one."""

import runpy
from typing import Any

import pytest
from command_lines import ROOT

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.models.registry import MODELS

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = ROOT / "experiments" / "equivalence" / "config.py"
PARTS: dict[str, tuple[str, str]] = runpy.run_path(str(CONFIG))["PARTS"]
"""By model, the submodule that ``block`` and ``place`` name, and the one ``hybrid`` leaves on the host."""

LAYOUTS = ("single", "whole", "block", "functional", "hybrid", "place")
OTHER_DATA = [
    ("cnn", "digits"),
    ("capsnet", "digits"),
    ("mlp", "digits"),
    ("rnn", "digits"),
    ("transformer", "digits"),
    ("dlrm", "clicks:samples=40"),
    ("embedding", f"text:{__file__}"),
    ("rnn", f"text:{__file__}"),
    ("transformer", f"text:{__file__}"),
]


def verdict(strategy: str, model: str, data: str = "random") -> str:
    """``verified``, or the reason why not."""
    block, host = PARTS[model]
    parts = {
        "block": {"block": (block,)},
        "hybrid": {"host": (host,)},
        "place": {"place": (f"{block}=cpu:1",)},
    }
    options: dict[str, Any] = dict(parts.get(strategy, {}))
    config = {"strategy": strategy, "model": model, "data": data, "virtual": 1 if strategy == "single" else 3}
    try:
        prepared = prepare(RunConfig.from_dict(config | options))
    except ConfigError as error:
        return f"no: {error}"
    result = verify(prepared)
    return "verified" if result.passed else f"no: {result}"


def test_parts_of_every_model_are_named() -> None:
    assert set(PARTS) == set(MODELS)
    assert set(LAYOUTS) <= set(STRATEGY_OPTIONS)


@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_verifies_under_every_strategy(model: str, strategy: str) -> None:
    assert verdict(strategy, model) == "verified"


@pytest.mark.parametrize("strategy", ["whole", "hybrid"])
@pytest.mark.parametrize(("model", "data"), OTHER_DATA)
def test_every_source_verifies_with_the_models_that_take_it(model: str, data: str, strategy: str) -> None:
    assert verdict(strategy, model, data) == "verified"
