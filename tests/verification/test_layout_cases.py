"""Layouts over ranks: a wrong one is caught and its module named, by all ranks alike; right ones pass."""

import re
from typing import Any

import pytest
from catalogue import FAMILIES, Layout, layouts
from in_ranks import in_ranks

from dpexp.distributed.group import ProcessGroup

NAMED = re.compile(r"(?:module|parameter) '([^'.]*)|(?:parameters|optimizer|buffers) \(([^.)]*)\.")
"""Where a message names a module: the first is the one that it is about."""
LAYOUTS = {f"{each.family}.{each.name}": each for family in FAMILIES for each in layouts(family)}


def judged(group: ProcessGroup | None, name: str, count: int = 2) -> str:
    """What the proof of a layout says; nothing where it passes."""
    try:
        LAYOUTS[name].prove(group.size if group else count)
    except RuntimeError as error:  # VerificationError is one
        return f"{type(error).__name__}: {error}"
    return ""


def problem(layout: Layout, count: int, messages: list[str]) -> str:
    """What is not as it should be in the messages of the ranks; nothing where all is."""
    message = messages[0]
    if messages != [message] * len(messages):
        return f"the ranks say different things: {messages}"
    if not layout.module:
        return message
    modules, found = layout.module.split(","), NAMED.search(message)
    expected = modules[(count - 2) % len(modules)]
    named = found and (found[1] or found[2])
    is_said = message.startswith("VerificationError") and layout.words.format(n=count) in message
    return (
        "" if is_said and named == expected else f"{expected} and '{layout.words}' are not named: {message}"
    )


def problems(names: list[str], count: int) -> dict[str, str]:
    """What is wrong with the verdicts on these layouts, over so many ranks or devices."""
    alone = [name for name in names if LAYOUTS[name].dimensions == ("devices",)]
    messages: dict[str, Any] = {name: [judged(None, name, count)] for name in alone}
    if of_ranks := [name for name in names if name not in alone]:
        found = in_ranks(count, __file__, *(f"judged:{name}" for name in of_ranks))
        messages |= dict(zip(of_ranks, found.values(), strict=True))
    said = {name: problem(LAYOUTS[name], count, each) for name, each in messages.items()}
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
