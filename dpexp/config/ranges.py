"""Ranges: whole numbers as text: consecutive ones joined, and counts with what they count."""

from collections.abc import Iterable


def consecutive(numbers: Iterable[int]) -> list[range]:
    """Each number with those after it that follow without a gap: 15, 16, 17, 0, 1 as 15 to 17 and 0 to 1."""
    found: list[range] = []
    for number in numbers:
        if found and number == found[-1].stop:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def span(run: range, joint: str = "-") -> str:
    """``0-24``, or ``30`` of one number."""
    return str(run[0]) if len(run) == 1 else f"{run[0]}{joint}{run[-1]}"


def ranges(numbers: Iterable[int]) -> str:
    """``0-24, 30``."""
    return ", ".join(map(span, consecutive(numbers)))


def range_or_list(numbers: Iterable[int], joint: str = ", ") -> str:
    """``0-24`` if no number is missing, else each of them: ``0, 1, 30``."""
    numbers = list(numbers)
    found = consecutive(numbers)
    return span(found[0]) if len(found) == 1 else joint.join(map(str, numbers))


def plural(count: int, noun: str) -> str:
    """``1 thread``, ``2 threads``, ``20 batches``."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{count} {noun}{ending}"


def be(count: int) -> str:
    """The verb after so many: ``is``, ``are``."""
    return "is" if count == 1 else "are"
