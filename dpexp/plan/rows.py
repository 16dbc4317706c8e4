"""Rows: what a plan says of each layout, from steps without data.

row_of(text, …)      one layout: memory, traffic, FLOPs, bound, the most rows that fit
most_rows(…)         the most rows that fit, by plans of other numbers
"""

from __future__ import annotations

import gc
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpexp.config.errors import ConfigError, describe, text_of
from dpexp.config.run_config import RunConfig
from dpexp.config.words import listed, plural
from dpexp.devices import HOST, label
from dpexp.plan.hardware import Hardware
from dpexp.plan.layout import InputError, LaidOut, laid_out
from dpexp.plan.memory import KINDS
from dpexp.plan.steps import Needed
from dpexp.record.record import Row
from dpexp.strategies.modules import EmbeddingTable
from dpexp.strategies.registry import STRATEGIES

MORE = 8
"""At most so many times the devices are tried where a layout does not fit."""
_PLANS, _TIMES, _MOST = 12, 32, 2**30
"""At most so many plans look for the most rows, each with at most so many times those of the plans before it;
they are fewer than the last."""
RESERVED = 0.85
"""PyTorch reserves 10 to 20% more than it allocates: above this share of the memory a plan says so."""
_TORCH, _OWN = Path(torch.__file__).parent, Path(__file__).parents[1]
_REFUSED = "refused: "
"""So begins the reason where the input is at fault."""


Devices = tuple[int, Hardware]
"""So many devices of a kind."""


def row_of(text: str, config: RunConfig, objects: Mapping[str, Any], devices: Devices) -> Row:
    """The row of a layout: ``plan`` has its keys. One that cannot be planned has the reason as ``why``."""
    count, hardware = devices
    try:
        with laid_out(config, objects, count) as layout:
            row, parts, rows = _row(layout, hardware), layout.parts, layout.rows
            with suppress(Exception):  # of any kind: batches of lists have one number of rows, say
                peak_of = partial(_peak, layout)
                row["most_rows"] = most_rows(peak_of, row["rows"], hardware.memory)
        if not row["fits"]:
            row["why"] = _too_much(row, config, objects, devices, parts, rows)
    except Exception as error:  # of any kind: of the model, of a layout, of an operator without a rule
        why = f"{_REFUSED if isinstance(error, InputError) else 'not planned: '}{_reason(error)}"
        row = dict.fromkeys(_KEYS) | {"devices": count, "why": why}
    finally:
        gc.collect()  # what has no data is in cycles, too
    return {"layout": text} | row


def check_not_refused(rows: Sequence[Row]) -> None:
    """Raises ConfigError where each layout has refused the input."""
    if all(row["fits"] is None and row["why"].startswith(_REFUSED) for row in rows):
        layouts = dict[str, str]()  # by reason, as most have the same
        for row in rows:
            layouts.setdefault(row["why"].removeprefix(_REFUSED), row["layout"])
        is_one = len(layouts) == 1
        raise ConfigError("; ".join(why if is_one else f"{text}: {why}" for why, text in layouts.items()))


_KEYS = (
    *("devices", "rows", "peak_bytes", "bytes", "peak_module", "sent_bytes", "sent", "flops", "bound_s"),
    *("fits", "most_rows", "why"),
)


def _reason(error: Exception) -> str:
    text = text_of(error) if isinstance(error, ConfigError) else describe(error)
    name = type(error).__name__
    if name in ("DataDependentOutputException", "GuardOnDataDependentSymNode", "DynamicOutputShapeException"):
        operator = str(error).splitlines()[0]
        return f"the model reads numbers, and tensors of a plan have none: {operator}{_line(error)}"
    if name in ("UnsupportedFakeTensorException", "UnsupportedOperatorException"):
        return f"an operator has no rule for tensors without data: {text}"
    return text.splitlines()[0]


def _line(error: Exception) -> str:
    """The innermost line that is not of PyTorch or dpexp: of the model, also where it is a library's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not Path(frame.filename).is_relative_to(_TORCH) and not Path(frame.filename).is_relative_to(_OWN):
            return f" ({frame.filename}, line {frame.lineno}: {frame.line})"
    return ""


def _row(layout: LaidOut, hardware: Hardware) -> Row:
    """The row of what the layout's steps need; its device is the one that needs most."""
    needed = layout.take()
    peak = layout.peak(needed)
    sent = _sent(layout, needed)
    most_sent = max(sent.values(), key=Counter.total, default=Counter[str]())
    flops = {name: _of_device(needed, name) for name in layout.accelerators}
    total = 0 if needed.uncounted else max(sum(each.values()) for each in flops.values())
    fits = peak.bytes <= hardware.memory
    why = "close: PyTorch reserves 10 to 20% more" if fits and peak.bytes > RESERVED * hardware.memory else ""
    host = needed.peaks.get(label(HOST))
    if not layout.prepared.group.members and host is not None and host.kinds["parameters"]:
        why = "; ".join(filter(None, [why, f"and {host.bytes / 1e9:.3g} GB on the host"]))
    return {
        "devices": layout.devices,
        "rows": -(-layout.rows // layout.parts),
        "peak_bytes": peak.bytes,
        "bytes": {kind: peak.kinds[kind] for kind in KINDS},
        "peak_module": peak.module or "(model)",
        "sent_bytes": most_sent.total(),
        "sent": dict(most_sent),
        "flops": total or None,
        "bound_s": _bound(flops if total else {}, sent, layout, hardware),
        "fits": fits,
        "most_rows": None,
        "why": why,
    }


def _of_device(needed: Needed, device: str) -> dict[str, int]:
    return {dtype: count for (name, dtype), count in needed.flops.items() if name == device}


def _sent(layout: LaidOut, needed: Needed) -> dict[str, Counter[str]]:
    """What each device of this process sends in a step, by kind."""
    if layout.prepared.group.members:
        return {label(HOST): Counter(needed.sent)}
    return layout.copied_bytes()


def _bound(
    flops: Mapping[str, Mapping[str, int]],
    sent: Mapping[str, Counter[str]],
    layout: LaidOut,
    hardware: Hardware,
) -> float | None:
    """Seconds that a step takes at least: the slower of computing and sending; None where it is not known."""
    seconds = [0.0]
    for by_type in flops.values():
        if not by_type.keys() <= hardware.flops.keys():
            return None
        seconds.append(sum(count / hardware.flops[dtype] for dtype, count in by_type.items()))
    of_ranks = bool(layout.prepared.group.members)
    for device, kinds in sent.items():
        speed = hardware.link if of_ranks or device != label(HOST) else hardware.host
        if speed is not None:
            seconds.append(kinds.total() / speed)
    return max(seconds) or None


# --- how many rows fit ---


def _peak(layout: LaidOut, rows: int) -> int:
    """The bytes of a device for so many rows on each, by a plan."""
    return layout.peak(layout.take(rows * layout.parts)).bytes


def most_rows(peak_of: Callable[[int], int], rows: int, memory: int) -> int | None:
    """The largest number of rows per device whose peak is at most the memory; 0 where one is too much.

    The line through two plans says where to look, and a third and fourth confirm it: one fits, and with a row
    more it does not. Where the peak is no line in the rows, as below a number for which the optimizer
    decides, further plans follow; the last that fits is then shown. None where a billion rows fit.
    """
    known = {rows: peak_of(rows)}
    other = 4 * rows if known[rows] <= memory else max(1, rows // 4)
    for _ in range(_PLANS):
        if other in known:
            break
        known[other] = peak_of(other)
        fitting = sorted(each for each in known if known[each] <= memory)
        others = sorted(each for each in known if known[each] > memory)
        low, high = fitting[-1] if fitting else 0, others[0] if others else _MOST
        if high == low + 1:
            break
        a, b = others[:2] if len(others) > 1 else (low, high) if fitting and others else fitting[-2:]
        slope = (known[b] - known[a]) / (b - a)
        wanted = math.floor(a + (memory - known[a]) / slope) if slope > 0 else 16 * low
        other = min(max(wanted, low + 1), high - 1, _TIMES * max(known))
    if max(known.values()) <= memory:
        return None
    return max((each for each in known if known[each] <= memory), default=0)


# --- what makes a layout fit ---


def _too_much(
    row: Row, config: RunConfig, objects: Mapping[str, Any], devices: Devices, parts: int, rows: int
) -> str:
    """By how much it is too much, and the first thing that makes it fit, which a plan has shown."""
    count, hardware = devices
    excess = f"{(row['peak_bytes'] - hardware.memory) / 1e9:.3g} GB too much"
    tried = list[str]()
    for remedy, changed, several in _remedies(row, config, count, parts, rows):
        try:
            with laid_out(changed, objects, several) as layout:
                fits = layout.peak(layout.take()).bytes <= hardware.memory
        except Exception:  # of any kind: it is no remedy then
            continue
        finally:
            gc.collect()
        if fits:
            return f"{excess}; fits with {remedy}"
        tried.append(remedy)
    return f"{excess}; too much with {listed(tried)}, too" if tried else excess


def _remedies(
    row: Row, config: RunConfig, count: int, parts: int, rows: int
) -> Iterator[tuple[str, RunConfig, int]]:
    most = row["most_rows"] or 0
    while most:
        batches = -(-rows // (most * parts))
        fewer = replace(config, batch_size=most * parts, accumulate=config.accumulate * batches)
        yield f"--batch-size {most * parts} --accumulate {fewer.accumulate}", fewer, count
        most //= 2  # gradients that accumulate need memory, too
    one = replace(config, batch_size=rows)
    others = [("--dtype bfloat16", replace(one, dtype="bfloat16"))] if config.dtype == "float32" else []
    if config.options.checkpoints and not (config.checkpoint or config.eval):
        checkpoint = [
            (f"--checkpoint {text}".strip(), replace(each, checkpoint=True)) for text, each in others
        ]
        others = [("--checkpoint", replace(one, checkpoint=True)), *others, *checkpoint]
    yield from ((text, each, count) for text, each in others)
    if STRATEGIES[config.strategy](config.options).has_ranks:
        times = 2
        while times <= MORE:
            yield plural(times * count, "device"), one, times * count
            times *= 2


def hybrid_of(single: RunConfig, objects: Mapping[str, Any]) -> str:
    """The layout with the largest embedding on the host; empty where there is none, or where it is tied."""
    try:
        with laid_out(single, objects, 1) as layout:
            model = layout.prepared.model
    except Exception:  # of any kind: the row of the layout has said it
        return ""
    names = {name: each for name, each in model.named_modules() if name and isinstance(each, EmbeddingTable)}
    if not names:
        return ""
    largest = max(names, key=lambda name: names[name].weight.numel())
    uses = [
        each for _, each in model.named_parameters(remove_duplicate=False) if each is names[largest].weight
    ]
    return f"hybrid --host {largest}" if len(uses) == 1 else ""
