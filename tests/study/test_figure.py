"""Figures of experiments: whatever the data, no title is cut, no texts overlap, and ticks are round."""

from __future__ import annotations

import itertools

import pytest
from drawn_figures import axes_without_round_ticks, draw, illegible_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from dpexp.record import Row
from dpexp.study import figure
from dpexp.study.experiment import Bars, Curves, Dots, Lines, Splits

TITLES = st.sampled_from(
    [
        "Short",
        "A step of the small CNN, a global batch of 4096 rows, over processes of one thread " * 2,
        "W" * 150,
    ]
)
LABELS = [
    "single device",
    "2 processes (DDP)",
    "encoder.layers.11.self_attention.linear_projection, 2 devices",
]
VALUES = st.floats(1e-4, 1e6)


def check(spec: figure.Spec, data: list[Row]) -> None:
    drawn = figure.draw(spec, data)
    draw(drawn)
    assert illegible_texts(drawn) == []
    assert axes_without_round_ticks(drawn) == []


@settings(max_examples=8, deadline=None)
@given(TITLES, st.lists(VALUES, min_size=1, max_size=3), st.floats(0.01, 1))
def test_bars_are_legible(title: str, values: list[float], limit: float) -> None:
    rows = zip(LABELS, values, strict=False)
    data = [{"label": label, "value": value, "dots": [0.9 * value, value]} for label, value in rows]
    check(Bars(title, "step_ms", {}, {"the limit of verification": limit * max(values)}), data)


@settings(max_examples=8, deadline=None)
@given(TITLES, VALUES, st.lists(st.floats(0.3, 3), min_size=6, max_size=6), st.booleans())
def test_lines_are_legible(title: str, scale: float, factors: list[float], is_ratio: bool) -> None:
    xs = (8, 128, 2048)
    data = []
    for label, ys in zip(LABELS, (factors[:3], factors[3:]), strict=False):
        values = list(ys) if is_ratio else [scale * y for y in ys]
        data.append({"label": label, "x": list(xs), "y": values, "low": values, "high": values})
    against = {label: dict.fromkeys(xs, "single") for label in LABELS} if is_ratio else {}
    check(Lines(title, "step_ms", "rows in a batch", {}, against), data)


@settings(max_examples=4, deadline=None)
@given(TITLES, st.lists(st.floats(1e-17, 1e-9), min_size=3, max_size=3))
def test_dots_are_legible(title: str, values: list[float]) -> None:
    data = [
        {"row": row, "label": label, "value": value}
        for row, (label, value) in itertools.product(("linear", "cnn"), zip(LABELS[:2], values, strict=False))
    ]
    check(
        Dots(title, "step_ms", {}, {"limit of verification": 1e-12, "mean of the pieces' means": 0.1}), data
    )


@pytest.mark.parametrize("loss", [2.3, 1e-7, 4e9])
def test_splits_and_curves_are_legible(loss: float) -> None:
    title = "A batch is cut in order; the last one leaves devices idle " * 3
    check(Splits(title, {}), [{"label": label, "rows": [4, 4, 2]} for label in LABELS])
    curve = {"x": [100, 200, 5000], "y": [loss, loss / 2, loss / 3]}
    check(Curves(title, {}, 100), [{"label": label, **curve} for label in LABELS[:2]])
