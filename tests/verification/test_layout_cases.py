"""Layouts over ranks: a wrong one is caught and its module named, by all ranks alike; right ones pass."""

from typing import Any

import pytest
from catalogue import FAMILIES, Layout, layouts
from helpers.in_ranks import in_ranks

from dpexp.config.errors import VerificationError
from dpexp.distributed.group import ProcessGroup

LAYOUTS = {f"{each.family}.{each.name}": each for family in FAMILIES for each in layouts(family)}


Fields = dict[str, Any]
"""Those of a VerificationError; none where a proof passes."""


def judged(group: ProcessGroup | None, name: str, count: int = 2) -> Fields:
    """The error of the proof of a layout."""
    try:
        LAYOUTS[name].prove(group.size if group else count)
    except VerificationError as error:
        return vars(error)
    return {}


def problem(layout: Layout, count: int, errors: list[Fields]) -> str:
    """What is not as it should be in the errors of the ranks; nothing where all is."""
    error = errors[0]
    if errors != [error] * len(errors):
        return f"the ranks have different errors: {errors}"
    if not (layout.module and error):
        return "" if not (layout.module or error) else f"it should be {layout.module or 'right'}: {error}"
    modules = layout.module.split(",")
    expected = modules[(count - 2) % len(modules)]
    is_named = (
        error["module"].partition(".")[0] == expected and layout.words.format(n=count) in error["cause"]
    )
    return "" if is_named else f"{expected} and '{layout.words}' are not named: {error}"


def problems(names: list[str], count: int) -> dict[str, str]:
    """What is wrong with the verdicts on these layouts, over so many ranks or devices."""
    alone = [name for name in names if LAYOUTS[name].dimensions == ("devices",)]
    errors: dict[str, list[Fields]] = {name: [judged(None, name, count)] for name in alone}
    if of_ranks := [name for name in names if name not in alone]:
        found = in_ranks(count, __file__, *(f"judged:{name}" for name in of_ranks))
        errors |= dict(zip(of_ranks, found.values(), strict=True))
    said = {name: problem(LAYOUTS[name], count, each) for name, each in errors.items()}
    return {name: each for name, each in said.items() if each}


@pytest.mark.parametrize("name", [name for name, each in LAYOUTS.items() if 2 in each.worlds()])
def test_a_layout_over_two_ranks(name: str) -> None:
    assert problems([name], 2) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "count"), [*((family, 3) for family in FAMILIES), ("mixed", 4)])
def test_layouts_over_more_ranks(family: str, count: int) -> None:
    found = [name for name, each in LAYOUTS.items() if each.family == family and count in each.worlds()]
    assert len({bool(LAYOUTS[name].module) for name in found}) == 2
    assert problems(found, count) == {}
