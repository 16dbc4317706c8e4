"""The words of messages: numbers and names that are alike, joined."""

import pytest

from dpexp.config.errors import be, consecutive, listed, merged, plural, range_or_list, span


@pytest.mark.parametrize(
    ("numbers", "runs", "text"),
    [
        ([], [], ""),
        ([7], [range(7, 8)], "7"),
        ([0, 1, 2], [range(3)], "0-2"),
        ([15, 16, 17, 0, 1], [range(15, 18), range(2)], "15, 16, 17, 0, 1"),
        ([1, 1, 2], [range(1, 2), range(1, 3)], "1, 1, 2"),
    ],
)
def test_consecutive_numbers_are_joined(numbers: list[int], runs: list[range], text: str) -> None:
    assert consecutive(iter(numbers)) == runs
    assert range_or_list(iter(numbers)) == text


def test_a_run_of_numbers_has_its_ends_and_one_of_its_own_is_alone() -> None:
    assert [span(run, " to ") for run in consecutive([15, 16, 17, 0])] == ["15 to 17", "0"]


@pytest.mark.parametrize(
    ("noun", "texts"),
    [
        ("thread", ["0 threads are", "1 thread is", "2 threads are"]),
        ("batch", ["0 batches are", "1 batch is", "2 batches are"]),
    ],
)
def test_one_of_them_is_singular(noun: str, texts: list[str]) -> None:
    assert [f"{plural(count, noun)} {be(count)}" for count in range(3)] == texts


def test_modules_that_are_alike_have_a_range_only_if_none_is_missing() -> None:
    rows = [(f"layers.{index}.fc", 0) for index in (0, 1, 2, 4)]
    assert merged(rows[:3]) == [("layers.0-2.fc", 0)]
    assert merged(rows) == [("layers.0,1,2,4.fc", 0)]


def test_a_list_of_names_ends_with_how_many_more_there_are() -> None:
    assert listed(["head", *(f"layers.{index}.fc" for index in range(300))]) == "head, layers.0-299.fc"
    assert listed("abcde", most=3) == "a, b, c and 2 more"
