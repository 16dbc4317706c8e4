"""Numbers as text for people: times, bytes, shapes, shares."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

from dpexp.config.ranges import plural
from dpexp.record.batches import Batches, Call
from dpexp.record.phases import Phase


def text(value: float, unit: str) -> str:
    """A number in a unit of ``_TEXTS``; of any other, the number with its unit after it."""
    return _TEXTS[unit](value) if unit in _TEXTS else f"{number(value)} {unit}".rstrip()


def ms(value: float) -> str:
    """A time in ms with three significant digits, in a readable unit: ``42 µs``, ``1.3 ms``, ``1,250 s``."""
    factor, unit = time_unit(value)
    return f"{number(value * factor)} {unit}"


def time_unit(longest: float) -> tuple[float, str]:
    """The unit in which a time in ms reads well, and the factor that converts to it."""
    if longest >= 999.5:  # which would be rounded to 1,000 ms
        return 0.001, "s"
    return (1.0, "ms") if longest >= 0.09995 or longest == 0 else (1000.0, "µs")


def size(count: float) -> str:
    """Bytes in decimal units: ``48 B``, ``3.28 kB``, ``256 MB``."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB" if abs(count) < 1000 else f"{count:,.0f} GB"


def flop(count: float) -> str:
    """Floating-point operations: ``640 FLOP``, ``1.2 MFLOP``, ``31 TFLOP``."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(count) < 1000:
            return f"{count:.3g} {prefix}FLOP"
        count /= 1000
    return f"{count:,.3g} PFLOP"


def part(count: float, full: float) -> str:
    """Bytes of a shard and of the full tensor in one unit: ``265 of 1,060 B``, ``3.1 of 12.4 MB``."""
    if full < 10_000:
        return f"{count:,.0f} of {full:,.0f} B"
    for unit in ("kB", "MB"):
        count, full = count / 1000, full / 1000
        if full < 1000:
            return f"{count:.3g} of {full:.3g} {unit}"
    return f"{count / 1000:.3g} of {full / 1000:,.3g} GB"


def fraction(count: int, full: int) -> str:
    """``half``, ``a quarter``, ``1/8``, ``35%``; ``nothing`` for 0."""
    if count == 0 or full % count:
        return percent(count / full) if count else "nothing"
    words = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}
    return words.get(full // count, f"1/{full // count}")


def percent(share: float) -> str:
    """A share as ``7.5%`` below 10% and ``42%`` above."""
    return f"{100 * share:.1f}%" if 0 < share < 0.0995 else f"{100 * share:.0f}%"


def error(value: float) -> str:
    """A relative error: ``2.9e-16``, ``0``; ``-`` where nothing was compared."""
    return "-" if math.isnan(value) else "0" if value == 0 else f"{value:.1e}"


def number(value: float) -> str:
    """A number with a thousands separator; three significant digits below 100."""
    return f"{value:.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def ratio(value: float) -> str:
    """A factor: ``0.0043x``, ``1.07x``, ``12x``."""
    if 0 < value < 0.1:
        return f"{value:.2g}x"
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def shape(dims: Sequence[int]) -> str:
    """``[30, 5]`` as ``(30, 5)``, ``[30]`` as ``(30,)``."""
    return str(tuple(dims))


def shapes_text(several: Iterable[Sequence[int]]) -> str:
    """The shapes of one call: ``(30, 5), (30,)``; ``-`` where there is no tensor."""
    return ", ".join(map(shape, several)) or "-"


def repeated(words: Iterable[str], joint: str = " + ") -> str:
    """``15 + 15``; from five words on, equal neighbours are counted: ``7 × 4 + 2``."""
    words = list(words)
    return joint.join(words) if len(words) < 5 else counted(words, joint)


def counted(words: Iterable[str], joint: str = " + ") -> str:
    """Equal neighbours, counted: ``7 × 4 + 2``."""
    runs = [(word, len(list(same))) for word, same in groupby(words)]
    return joint.join(word if count == 1 else f"{count} × {word}" for word, count in runs)


def span(names: Sequence[str]) -> str:
    """Device names; of more than three, the first and the last: ``cpu:0, cpu:1`` or ``cpu:0 … cpu:31``."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"


def short_names(names: Sequence[str], most: int) -> list[str]:
    """Names of modules or devices in ``most`` letters, or in as many more as keep different ones apart."""
    longest = max(map(len, names), default=0)
    for length in range(most, longest):
        short = [short_name(name, length) for name in names]
        if len(set(short)) == len(set(names)):
            return short
    return list(names)


def short_name(name: str, most: int) -> str:
    """``encoder.layers.11.attention.linear`` as ``…layers.11.attention.linear`` or ``…11…linear``.

    Its end stays, and before it the index of its last layer.
    """
    if len(name) <= most:
        return name
    parts = name.split(".")
    layer = next((place for place in range(len(parts) - 2, -1, -1) if parts[place].isdecimal()), None)
    if layer is None:
        return f"…{name[1 - most :]}"
    mark = f"…{parts[layer]}…" if layer else f"{parts[0]}…"
    found = ["…" + ".".join(parts[start:]) for start in range(1, layer + 1)]
    found += [mark + ".".join(parts[start:]) for start in range(layer + 2, len(parts))]
    return next((short for short in found if len(short) <= most), mark + name[-max(1, most - len(mark)) :])


_TEXTS: Mapping[str, Callable[[float], str]] = {
    "ms": ms,
    "µs": lambda value: ms(value / 1000),
    "B": size,
    "FLOP": flop,
    "FLOP/s": lambda value: f"{flop(value)}/s",
    "share": percent,
    "x": ratio,
    "error": error,
}
"""How numbers in a unit read."""


SMALLEST_SHARE = 0.0005
"""Smaller shares read 0.0%."""


def phase_text(phase: Phase) -> str:
    """Its time, and what it moves: ``0.21 ms [IQR 0.02 ms], 3.2 kB``."""
    moved = f", {size(phase.bytes)}" if phase.bytes else ""
    return f"{ms(phase.median)} [IQR {ms(phase.iqr)}]{moved}"


def is_visible(phase: Phase) -> bool:
    """Whether a chart draws it: a share that reads 0.0% is not a bar."""
    return phase.share >= SMALLEST_SHARE


def call_texts(call: Call) -> tuple[str, str]:
    """Inputs and outputs of a call as text, replicas counted: ``2 × (4, 5) + (2, 5)``."""
    inputs, outputs = (map(shapes_text, each) for each in (call.inputs, call.outputs))
    return counted(inputs), counted(outputs)


def headline(group: Batches) -> str:
    """``30 rows -> 15 + 15``, as in DataParallel's tutorials; ranks that compute the same are counted."""
    split = f" -> {repeated(map(str, group.parts))}" if group.split else ""
    if group.same_rows:
        split += f", each on {plural(len(group.same_rows[0]), 'rank')}"
    return f"{plural(group.rows, 'row')}{split}"
