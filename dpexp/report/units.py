"""Numbers, shapes and names as text for people."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from dpexp.config.words import plural
from dpexp.record.batches import Batches, Call
from dpexp.record.steps import Noise


def text(value: Any, unit: str) -> str:
    """A number in a unit of ``_TEXTS``; of any other, the number with its unit after it."""
    return _TEXTS[unit](value) if unit in _TEXTS else f"{number(value)} {unit}".rstrip()


def number(value: float) -> str:
    """A number with a thousands separator; three significant digits below 100."""
    return f"{value:.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def ms(value: float) -> str:
    """A time in ms in a readable unit: ``42 µs``, ``1.3 ms``, ``1,250 s``."""
    factor, unit = time_unit(value)
    return f"{number(value * factor)} {unit}"


def time_unit(longest: float) -> tuple[float, str]:
    """The unit in which a time in ms reads well, and the factor that converts to it."""
    if longest >= 999.5:  # which would be rounded to 1,000 ms
        return 0.001, "s"
    return (1.0, "ms") if longest >= 0.09995 or longest == 0 else (1000.0, "µs")


def size(count: float) -> str:
    """Bytes in decimal units: ``48 B``, ``3.28 kB``, ``256 MB``."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB"))


def flop(count: float) -> str:
    """Floating-point operations: ``640 FLOP``, ``1.2 MFLOP``, ``31 TFLOP``."""
    return _scaled(count, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _scaled(count: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{number(count)} {units[-1]}"


def percent(share: float) -> str:
    """A share as ``7.5%`` below 10% and ``42%`` above."""
    return f"{100 * share:.1f}%" if 0 < share < 0.0995 else f"{100 * share:.0f}%"


def error(value: float) -> str:
    """A relative error: ``2.9e-16``, ``0``; ``-`` where nothing was compared."""
    return "-" if math.isnan(value) else "0" if value == 0 else f"{value:.1e}"


def ratio(value: float) -> str:
    """A factor: ``0.0043x``, ``1.07x``, ``12x``."""
    if 0 < value < 0.1:
        return f"{value:.2g}x"
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "us": lambda value: ms(value / 1000),
    "ms": ms,
    "s": lambda value: ms(1000 * value),
    "B": size,
    "FLOP": flop,
    "FLOP/s": lambda value: f"{flop(value)}/s",
    "share": percent,
    "x": ratio,
    "error": error,
    "digits": lambda value: f"{value:.4g}",
    "yes": lambda value: value if isinstance(value, str) else "yes" if value else "NO",
    "text": str,
}
"""How numbers in a unit read; the last two are no numbers."""


def shapes_text(several: Iterable[Sequence[int]]) -> str:
    """The shapes of one call: ``(30, 5), (30,)``; ``-`` where there is no tensor."""
    return ", ".join(str(tuple(dims)) for dims in several) or "-"


def call_texts(call: Call) -> tuple[str, str]:
    """Inputs and outputs of a call as text, replicas counted: ``2 × (4, 5) + (2, 5)``."""
    return counted(map(shapes_text, call.inputs)), counted(map(shapes_text, call.outputs))


def batches_text(group: Batches) -> str:
    """``30 rows -> 15 + 15``, as in DataParallel's tutorials; ranks that compute the same are counted."""
    split = f" -> {repeated(map(str, group.parts))}" if group.split else ""
    if group.same_rows:
        split += f", each on {plural(len(group.same_rows[0]), 'rank')}"
    return f"{plural(group.rows, 'row')}{split}"


def repeated(words: Iterable[str], joint: str = " + ") -> str:
    """``15 + 15``; from five words on, equal neighbours are counted: ``7 × 4 + 2``."""
    words = list(words)
    return joint.join(words) if len(words) < 5 else counted(words, joint)


def counted(words: Iterable[str], joint: str = " + ") -> str:
    """Equal neighbours, counted: ``7 × 4 + 2``."""
    runs = [(word, len(list(same))) for word, same in groupby(words)]
    return joint.join(word if count == 1 else f"{count} × {word}" for word, count in runs)


def device_names(names: Sequence[str]) -> str:
    """Device names; of more than three, the first and the last: ``cpu:0, cpu:1`` or ``cpu:0 … cpu:31``."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"


def noise_text(noise: Noise) -> str:
    """The reason with its figures: between which bounds the median lies."""
    return f"the median of {plural(noise.n, 'step')} lies between {ms(noise.low)} and {ms(noise.high)}"
