"""Layouts over ranks: a wrong one is caught and its module named, by all ranks alike; right ones pass."""

from typing import Any

import pytest
from catalogue import FAMILIES, Layout, layouts
from in_ranks import in_ranks

from dpexp.distributed.group import ProcessGroup
from experiments.known_bugs.tables import named_module


def judged(group: ProcessGroup | None, case: str, count: int = 0) -> str:
    """What the proof of a layout says, ``FAMILY.NAME``; nothing where it passes."""
    family, _, name = case.partition(".")
    (layout,) = (each for each in layouts(family) if each.name == name)
    try:
        layout.prove(group.size if group else count)
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
    if not message.startswith("VerificationError"):
        return message or "it is verified"
    modules = layout.module.split(",")
    expected = modules[(count - 2) % len(modules)]
    if named_module(message) != expected or layout.words.format(n=count) not in message:
        return f"{expected} and '{layout.words}' are not named: {message}"
    return ""


def problems(found: list[Layout], count: int) -> dict[str, str]:
    """What is wrong with the verdicts on these layouts, over so many ranks or devices."""
    names = {f"{each.family}.{each.name}": each for each in found}
    in_process = {name for name, each in names.items() if each.dimensions == ("devices",)}
    of_ranks = [name for name in names if name not in in_process]
    messages: dict[str, Any] = {name: [judged(None, name, count)] for name in in_process}
    if of_ranks:
        cases = [f"judged:{name}" for name in of_ranks]
        messages |= dict(zip(of_ranks, in_ranks(count, __file__, *cases).values(), strict=True))
    said = {name: problem(names[name], count, messages[name]) for name in names}
    return {name: each for name, each in said.items() if each}


def test_a_right_and_a_wrong_layout_of_each_family_over_two_ranks() -> None:
    found = [each for family in FAMILIES for each in layouts(family) if 2 in each.worlds()]
    first = {(each.family, each.dimensions, bool(each.module)): each for each in reversed(found)}
    assert len(first) == 2 * (len(FAMILIES) + 1), "of data_parallel also over devices"
    assert problems([*first.values()], 2) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "count"), [*((family, count) for family in FAMILIES for count in (2, 3)), ("mixed", 4)]
)
def test_every_layout(family: str, count: int) -> None:
    found = [each for each in layouts(family) if count in each.worlds()]
    assert len({bool(each.module) for each in found}) == 2
    assert problems(found, count) == {}
