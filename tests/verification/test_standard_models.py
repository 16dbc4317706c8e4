"""Standard models, laid out rightly, are verified or said not to be comparable, and their bugs are found."""

import importlib.util
import json
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from helpers import standard_models
from helpers.command_lines import python
from helpers.in_ranks import in_ranks
from helpers.standard_models import LANGUAGE, LAYOUTS, OF_RANKS, VISION

ONE_VALUE = (
    "ConfigError: a batch norm got one value for each channel of a batch of 5 rows, split over 3 devices"
)
"""The third of three replicas has one of five rows."""
OVER_ONE_VALUE = ("resnet18", "shufflenet_v2_x0_5")

without_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed"
)
MODELS = [*(pytest.param(model, marks=without_torchvision) for model in VISION), *LANGUAGE]
RIGHT, WRONG = ("5", "16"), ("16,scaled", "16,averaged")


def ends(models: Iterable[str], layouts: Sequence[str], runs: Sequence[str]) -> dict[str, Any]:
    """How each run of the models in the layouts ends, by its word."""
    words = [",".join(each) for each in product(models, layouts, runs) if is_possible(*each)]
    alone = [word for word in words if word.split(",")[1] not in OF_RANKS]
    found = dict[str, Any]()
    if alone:
        done = python(standard_models.__file__, *alone)
        assert done.returncode == 0, done.stderr
        found |= json.loads(done.stdout)
    if len(alone) < len(words):
        cases = [f"judged:{word}" for word in words if word not in alone]
        of_ranks = in_ranks(2, standard_models.__file__, *cases)
        found |= {case.partition(":")[2]: by_rank[0] for case, by_rank in of_ranks.items()}
    assert len(found) == len(words) > 0
    return found


def is_possible(model: str, layout: str, run: str) -> bool:
    """Whether there is such a bug: replicas have no losses of their own to average, unless the model has."""
    return layout in OF_RANKS or not run.endswith("averaged")


def is_right(word: str, end: dict[str, Any]) -> bool:
    """Whether a run of a right layout passed, or says why it cannot be compared."""
    model, layout, rows = word.split(",")
    if (layout, rows) == ("whole", "5") and model in OVER_ONE_VALUE:
        return bool(end["error"].startswith(ONE_VALUE))
    if end["error"]:
        return False
    found = end["verification"]
    sections = (found, found["first_steps"], found["last_step"])
    is_compared = all(each["passed"] or "not comparable" in each["note"] for each in sections)
    return is_compared and bool(found["passed"])


def check_right(models: Iterable[str], layouts: Sequence[str]) -> None:
    found = ends(models, layouts, RIGHT)
    assert {word: end for word, end in found.items() if not is_right(word, end)} == {}


def check_wrong(models: Iterable[str], layouts: Sequence[str]) -> None:
    found = ends(models, layouts, WRONG)
    passed = {word: end for word, end in found.items() if not end["fields"]}
    assert passed == {}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_verified_in_every_layout(model: str) -> None:
    check_right([model], tuple(LAYOUTS))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_bug_in_any_layout_of_a_model_is_found(model: str) -> None:
    check_wrong([model], tuple(LAYOUTS))
