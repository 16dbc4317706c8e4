"""Every model under every strategy, over three devices, computes what it computes on one.

A test compares the table of docs/strategies.md with them, and prints the right one where they differ.
"""

import functools
import runpy

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
PAGE = ROOT / "docs" / "strategies.md"
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


def option(strategy: str, model: str) -> tuple[str, str] | None:
    """The name and value of the option that names a part of this model for the strategy."""
    block, host = PARTS[model]
    return {"block": ("block", block), "hybrid": ("host", host), "place": ("place", f"{block}=cpu:1")}.get(
        strategy
    )


@functools.cache
def verdict(strategy: str, model: str, data: str = "random") -> str:
    """``verified``, or the reason why not."""
    given = option(strategy, model)
    options = {given[0]: (given[1],)} if given else {}
    config = {"strategy": strategy, "model": model, "data": data, "virtual": 1 if strategy == "single" else 3}
    try:
        prepared = prepare(RunConfig.from_dict(config | options))
    except ConfigError as error:
        return f"no: {error}"
    result = verify(prepared)
    return "verified" if result.passed else f"no: {result}"


def table() -> str:
    """The page's table: the verdict on every model under every strategy, with the option for its part."""
    rows = [["model", *LAYOUTS], ["---"] * (len(LAYOUTS) + 1)]
    for model in MODELS:
        cells = []
        for strategy in LAYOUTS:
            given = option(strategy, model)
            cells.append(verdict(strategy, model) + (f", `--{given[0]} {given[1]}`" if given else ""))
        rows.append([f"`{model}`", *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


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


def test_docs_have_this_table() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- models -->\n")
    found, mark, _ = rest.partition("\n<!-- /models -->")
    assert mark, f"{PAGE} has no table between <!-- models --> and <!-- /models -->"
    assert found == table(), (
        f"{PAGE} needs this table between <!-- models --> and <!-- /models -->:\n{table()}"
    )
