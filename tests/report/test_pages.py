"""Pages in a real browser: generated runs at every zoom and width, notebooks in every pair of themes."""

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import HELPERS
from playwright.sync_api import Browser, Page
from record_factory import PHASES, timeline_row, whole

from dpexp import report
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import comparison_page, lanes, style, timeline
from dpexp.report import page as pages
from dpexp.report.section import Section, Table

MEASURES = (HELPERS / "pictures.js").read_text()
DEEP = [f"encoder.layers.{number}.self_attention.linear_projection" for number in range(4)]
SCALES = {"0.2 µs": 1e-4, "2 ms": 1.0, "17 ms": 8.6, "999.7 ms": 499.85, "200 s": 1e5}


def generated(seed: int) -> Record:
    """A run with random phases, some of 0 ms and some inside others, and random names of devices."""
    rng = random.Random(seed)
    count = rng.choice([1, 2, 8, 32])
    scale = rng.choice(list(SCALES.values()))
    phases = {
        name: rng.choice([0.0, 1e-6, scale * ms, scale * rng.lognormvariate(0, 2)])
        for name, ms in PHASES.items()
    }
    phases["backward"] = scale
    record = whole(count, phases=phases, batches=(64,))
    for row in [row for row in record.timeline if row["phase"] == "backward"]:
        half = (row["start_us"] + row["end_us"]) / 2
        record.timeline.append(
            timeline_row(row["step"], "allreduce", None, row["device"], half, row["end_us"])
        )
    names = rng.choice(
        ["cpu:{}", "cuda:{}", "node-{}.cluster.example.org/cuda:0", "a-long-host-name/cuda:{}"]
    )
    for row in record.timeline:
        row["device"] = names.format(row["device"].partition(":")[2])
    return record


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.add_init_script(f"addEventListener('DOMContentLoaded', () => {{ {MEASURES} }})")
    yield context.new_page()
    context.close()


def shown(page: Page, path: Path, content: str) -> None:
    path.write_text(content)
    page.goto(path.as_uri())


def measured(page: Page) -> dict[str, Any]:
    """What is wrong with the texts and colours of the shown page, and its ticks and lanes."""
    found: dict[str, Any] = page.evaluate(
        """() => ({
            cut: pictures.cutTexts(), ticks: pictures.shownTicks(), names: pictures.laneNames(),
            overlapping: pictures.overlappingTexts(".axis, h1, .tools, .legend"),
            illegible: pictures.illegible(),
        })"""
    )
    return found


def scrolls_sideways(page: Page) -> bool:
    found: bool = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return found


def are_round(ticks: list[float]) -> bool:
    """Whether neighbours differ by 1, 2, 2.5 or 5 times a power of ten, and each is a multiple of that."""
    step = min(later - earlier for earlier, later in itertools.pairwise(ticks))
    digits = step / 10 ** math.floor(math.log10(step) + 1e-6)
    multiples = all(abs(tick / step - round(tick / step)) < 1e-3 for tick in ticks)
    return multiples and any(math.isclose(digits, size, rel_tol=1e-3) for size in (1, 2, 2.5, 5))


@pytest.mark.parametrize("seed", range(6))
def test_a_timeline_is_legible_at_every_zoom_and_width(page: Page, tmp_path: Path, seed: int) -> None:
    record = generated(seed)
    page.emulate_media(color_scheme="dark" if seed % 2 else "light")
    shown(page, tmp_path / "timeline.html", pages.timeline_page(RecordView(record), timeline.steps(record)))
    for width in (1400, 360):
        page.set_viewport_size({"width": width, "height": 600})
        for clicks, along in ((0, 0.0), (1, 0.0), (1, 0.37), (2, 1.0), (5, 0.37), (12, 0.81)):
            page.evaluate(
                """([clicks, along]) => {
                    const press = (id) => document.getElementById(id).click();
                    for (let i = 0; i < 12; i++) press("out");
                    for (let i = 0; i < clicks; i++) press("in");
                    const section = document.querySelector("section:not([hidden])");
                    section.scrollLeft = along * section.scrollWidth;
                    section.dispatchEvent(new Event("scroll"));
                }""",
                [clicks, along],
            )
            found = measured(page)
            assert len(found["ticks"]) >= 3, (width, clicks)
            assert are_round(found["ticks"]), found["ticks"]
            assert not found["cut"] + found["overlapping"], (width, clicks, along)
            assert not found["illegible"]
            assert len(set(found["names"])) == len(found["names"])


BARS = """() => [...document.querySelectorAll("section:not([hidden]) .lane:not(.axis)")].map((lane) => [
    lane.firstChild.textContent, lane.lastChild.offsetHeight,
    ...[...lane.querySelectorAll(".bar")].map((bar) => [
        ...["left", "width", "top", "backgroundColor", "color"].map((name) => getComputedStyle(bar)[name]),
        bar.dataset.facts ?? bar.title, bar.textContent])])"""
"""What a page shows of a step: its lanes, and the place, the colours and the texts of their bars."""


@pytest.mark.parametrize("seed", range(3))
def test_a_script_draws_every_step_as_a_page_without_scripts_has_it(
    page: Page, tmp_path: Path, seed: int
) -> None:
    record = generated(seed)
    steps, view = timeline.steps(record), RecordView(record)
    colors = style.colors({*record.phases, *(bar.phase for step in steps for bar in step.bars)})
    page.set_viewport_size({"width": 1100, "height": 600})
    for step in steps:
        shown(page, tmp_path / "still.html", pages.document("still", lanes.step_html(step, colors)))
        still = page.evaluate(BARS)
        shown(page, tmp_path / "timeline.html", pages.timeline_page(view, steps))
        page.select_option("#step", str(step.number))
        assert page.evaluate(BARS) == still
        assert len(still) == len(step.lanes)
    assert any(len(bars) > 1 for _, _, *bars in still)


def test_a_timeline_in_a_page_as_narrow_as_its_names_draws_no_ticks(page: Page, tmp_path: Path) -> None:
    """As in the panel of an artifact that is still being laid out."""
    record = whole(2)
    content = pages.timeline_page(RecordView(record), timeline.steps(record))
    for width in (1, 20, 60, 100, 140, 180, 240, 300):
        page.set_viewport_size({"width": width, "height": 600})
        shown(page, tmp_path / "timeline.html", content)
        room = page.evaluate(
            """() => {
                const section = document.querySelector("section:not([hidden])");
                return section.clientWidth - section.querySelector(".axis .track").offsetLeft;
            }"""
        )
        found = measured(page)["ticks"]
        assert not found if room <= 0 else found, (width, room)
    page.set_viewport_size({"width": 900, "height": 600})
    assert len(measured(page)["ticks"]) >= 3


# --- notebooks -----------------------------------------------------------------------------------

JUPYTER = {
    "light": "--jp-layout-color0: white; --jp-layout-color2: #eee;"
    "--jp-content-font-color1: rgba(0, 0, 0, 0.87); --jp-ui-font-color1: rgba(0, 0, 0, 0.87); "
    "--jp-rendermime-table-row-background: #f5f5f5;",
    "dark": "--jp-layout-color0: #111; --jp-layout-color2: #424242;"
    "--jp-content-font-color1: rgb(255, 255, 255); --jp-ui-font-color1: rgba(255, 255, 255, 0.87); "
    "--jp-rendermime-table-row-background: #212121;",
}
"""What JupyterLab 4's two themes set, as far as tables and code use it."""
RENDERED = """
body { background: var(--jp-layout-color0); color: var(--jp-content-font-color1); }
.jp-RenderedHTMLCommon :not(pre) > code { background-color: var(--jp-layout-color2); padding: 1px 5px; }
.jp-RenderedHTMLCommon table { border-collapse: collapse; color: var(--jp-ui-font-color1); }
.jp-RenderedHTMLCommon td { padding: 0.5em; max-width: none; border: none; }
.jp-RenderedHTMLCommon td, :not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon th { text-align: right; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: var(--jp-layout-color0); }
.jp-RenderedHTMLCommon tbody tr:nth-child(even) { background: var(--jp-rendermime-table-row-background); }
"""
"""How JupyterLab 4 draws the tables of an output (packages/rendermime/style)."""


def notebook() -> Record:
    """A run with deep modules, and phases of 0 ms and of a share that reads 0.0%."""
    record = whole(3, phases=PHASES | {"scatter": 0.0, "gather": 0.0001})
    row = record.device_map[0]
    names = ("linear_projection", "output_projection_of_all_heads")
    record.device_map = [{**row, "module": f"encoder.layers.11.self_attention.{name}"} for name in names]
    return record


@pytest.mark.parametrize("system", ["light", "dark"])
@pytest.mark.parametrize("theme", ["light", "dark", "Visual Studio Code", "none"])
def test_a_notebook_follows_its_theme_and_not_the_systems(
    page: Page, tmp_path: Path, system: Any, theme: str
) -> None:
    variables = JUPYTER.get(theme, "")
    if theme == "Visual Studio Code":
        variables = "--vscode-editor-background: #1f1f1f; --vscode-editor-foreground: #cccccc;"
    head = f"<style>:root {{ {variables} }} {RENDERED if theme in JUPYTER else ''}</style>"
    body = f'<body data-jp-theme-light="{theme == "light"}"><div class="jp-RenderedHTMLCommon">'
    page.emulate_media(color_scheme=system)
    page.set_viewport_size({"width": 900, "height": 800})
    shown(page, tmp_path / "notebook.html", f"<!DOCTYPE html>{head}{body}{report.html(notebook())}")
    found = measured(page)
    assert not found["illegible"]
    assert not found["cut"] + found["overlapping"]
    assert not scrolls_sideways(page)
    paper = page.evaluate("getComputedStyle(document.querySelector('.dpexp')).backgroundColor")
    colors = {
        "light": "rgb(255, 255, 255)",
        "dark": "rgb(17, 17, 17)",
        "Visual Studio Code": "rgb(31, 31, 31)",
    }
    assert paper == colors.get(theme, "rgb(255, 255, 255)" if system == "light" else "rgb(22, 25, 29)")
    assert len(found["ticks"]) >= 3
    assert are_round(found["ticks"])


@pytest.mark.parametrize("system", ["light", "dark"])
def test_a_page_with_wide_tables_and_pictures_does_not_scroll_sideways(
    page: Page, tmp_path: Path, system: Any
) -> None:
    table = Table(tuple(DEEP), (tuple(DEEP),))
    body = pages.section(Section("Shapes", table=table))
    figure, axes = style.figure_with_axes(10.0, 4.0)
    axes.plot(range(8), range(8))
    style.label_rows(axes, [f"layer {number}" for number in range(8)])
    style.time_axis(axes)
    style.title(axes, "Layers")
    style.legend(axes, {"forward": style.PHASES["forward"]})
    picture = comparison_page.inline(figure, "Layers")
    page.emulate_media(color_scheme=system)
    page.set_viewport_size({"width": 600, "height": 600})
    shown(page, tmp_path / "report.html", pages.document("Comparison", body + picture))
    assert page.evaluate("document.querySelector('table').clientWidth") > 600
    assert 500 < page.evaluate("document.querySelector('img').clientWidth") < 600
    assert not scrolls_sideways(page)
    assert not measured(page)["illegible"]


def test_a_share_that_reads_0_draws_nothing(page: Page, tmp_path: Path) -> None:
    shown(page, tmp_path / "notebook.html", report.html(notebook()))
    drawn = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("tr:has(.share)")].map(({cells}) =>
            [cells[0].textContent + cells[2].textContent, cells[1].children.length]))"""
    )
    assert {text for text, bars in drawn.items() if not bars} == {"scatter0%", "gather0.0%"}
    narrow = page.evaluate(
        "Math.min(...[...document.querySelectorAll('.bar')].map((bar) => bar.offsetWidth))"
    )
    assert narrow == 0
