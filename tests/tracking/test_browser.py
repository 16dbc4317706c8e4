"""MLflow's pages of real runs in a real browser: what they show, and that no request leaves the machine."""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from command_lines import ROOT, shared, wait
from playwright.sync_api import Browser, Page, expect
from servers import free_port
from tracking_processes import TIMEOUT_S

from dpexp.tracking.ledger import delivered

TIMEOUT_MS = 300_000
RUN = ["whole", "--model", "slow_model:factory", "--virtual", "2", "--steps", "6", "--warmup", "1"]
CONFIG = """
from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Claim
from dpexp.study.figure_kinds import Bars
QUESTION, REPEATS, COLUMNS = "Do more replicas cost more?", 1, ("step_ms",)
RUNS = {
    "single": RunConfig("single", devices="cpu", steps=6, threads=1),
    "three": RunConfig("whole", virtual=3, steps=6, threads=1),
}
CLAIMS = [Claim("Three cost more.", "step_ms", "three", ">", 1.0, "single")]
ANSWER, FIGURE = "They take {value step_ms three}.", Bars("", "step_ms", {"single": "", "three": ""})
"""
LOCAL_STORAGE = {
    "mlflow.workflowType_v1": '"machine_learning"',
    "mlflow.assistant.panelOpen_v1": "false",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
}
"""What MLflow's pages store at the first visit: with it they show no guided tour."""


@dataclass
class Visit:
    """A browser page on the MLflow UI of a real run and a real sweep, with every request that it made."""

    page: Page
    links: dict[str, str]
    requests: list[str] = field(default_factory=list)

    def runs(self, experiment: str = "dpexp") -> None:
        """Follow the link that ``scripts/ui.py`` printed."""
        self.page.goto("about:blank")
        self.page.goto(self.links[experiment])

    def run(self, tab: str) -> None:
        """A tab of the page of the run whose replicas overlap."""
        self.runs()
        self.page.get_by_role("link", name="overlap").click()
        self.page.get_by_role("tab", name=tab, exact=True).click()

    def artifact(self, name: str) -> None:
        self.run("Artifacts")
        self.page.get_by_text(name, exact=True).click()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DPEXP_HOME with a real run and a real sweep of two, delivered to its store side by side."""
    folder = tmp_path_factory.mktemp("home")
    experiment = tmp_path_factory.mktemp("experiments") / "replicas"
    experiment.mkdir()
    (experiment / "config.py").write_text(CONFIG)
    environment = {"DPEXP_HOME": str(folder), "PYTHONPATH": str(ROOT / "tests" / "helpers")}
    run = ["scripts/run.py", *RUN, "--run-name", "overlap", "--quiet", "--track-timeout", str(TIMEOUT_S)]
    sweep = ["scripts/sweep.py", str(experiment)]
    for process in [shared().start(*command, **environment) for command in (run, sweep)]:
        _, errors = wait(process)
        assert process.returncode == 0, errors
    states = delivered(folder, [run.name for run in (folder / "runs").iterdir()])
    assert list(states.values()) == ["yes"] * 4
    return folder


@pytest.fixture(scope="module")
def links(home: Path) -> Iterator[dict[str, str]]:
    """``scripts/ui.py``, running: the links that it printed, by experiment."""
    env = os.environ | {"DPEXP_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "scripts/ui.py", "--port", str(free_port())]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            printed = (line.strip().partition(": ") for line in itertools.islice(server.stdout, 2))
            yield {experiment: link for experiment, _, link in printed}
        finally:
            server.terminate()
            assert server.wait(timeout=TIMEOUT_S) is not None


@pytest.fixture(scope="module")
def visit(browser: Browser, links: dict[str, str]) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1500, "height": 1000})
    context.set_default_timeout(TIMEOUT_MS)
    expect.set_options(timeout=TIMEOUT_MS)
    for key, value in LOCAL_STORAGE.items():
        context.add_init_script(f"try {{ localStorage.setItem({key!r}, {value!r}) }} catch {{}}")
    visit = Visit(context.new_page(), links)
    context.on("request", lambda request: visit.requests.append(request.url))
    yield visit
    context.close()


@pytest.fixture(autouse=True)
def only_local_requests(visit: Visit) -> Iterator[None]:
    """No page that a test visits sends a request to another machine."""
    visit.requests.clear()
    yield
    hosts = {urlsplit(address).hostname for address in visit.requests}
    assert "127.0.0.1" in hosts
    assert hosts <= {None, "127.0.0.1"}, visit.requests


def test_the_runs_page_opens_with_the_summary(visit: Visit) -> None:
    visit.run("Overview")
    expect(visit.page.get_by_role("heading", name=re.compile("^Run overlap"))).to_be_visible()
    expect(visit.page.get_by_text("VIRTUAL devices, verified")).to_be_visible()
    visit.page.get_by_text("Show more").first.click()
    expect(visit.page.get_by_role("heading", name="Where a step goes")).to_be_visible()


def test_metrics_are_charts_grouped_by_prefix(visit: Visit) -> None:
    visit.run("Model metrics")
    for group in ("phases_ms", "time_ms"):
        expect(visit.page.get_by_text(group, exact=True).first).to_be_visible()
    expect(visit.page.locator(".js-plotly-plot, .plot-container").first).to_be_visible()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("shapes.json", ["[[30, 5]]", "[[15, 5]]", "[[5, 2]]"]),
        ("device_map.json", ["weight", "cpu:0", "float32"]),
    ],
)
def test_shapes_and_device_map_are_tables(visit: Visit, table: str, words: list[str]) -> None:
    visit.artifact(table)
    expect(visit.page.get_by_text("View as table")).to_be_visible()
    for word in words:
        expect(visit.page.get_by_text(word, exact=True).first).to_be_visible()


def test_the_timeline_is_shown_in_the_sandboxed_preview(visit: Visit) -> None:
    visit.artifact("timeline.html")
    bar = visit.page.frame_locator("iframe").locator(".bar", has_text="replica 1")
    expect(bar).to_be_visible()
    expect(bar).to_have_attribute("title", re.compile("parallel_apply, replica 1"))


@pytest.mark.parametrize("figure", ["phases.png", "layout.png"])
def test_figures_are_shown(visit: Visit, figure: str) -> None:
    visit.artifact(figure)
    shown = visit.page.locator(
        "img[src^='blob:'], img[src*='get-artifact'], .image-outer-container img"
    ).first
    expect(shown).to_be_visible()
    assert shown.evaluate("image => image.naturalWidth") > 500


def test_the_runs_of_a_sweep_lie_under_it_and_are_compared(visit: Visit) -> None:
    visit.runs("replicas")
    sweep = visit.page.get_by_role("row").filter(has=visit.page.get_by_role("link", name="sweep of replicas"))
    expect(sweep).to_be_visible()
    expect(visit.page.get_by_role("link", name="single.r1")).to_have_count(0)
    sweep.get_by_role("button").first.click()  # the sign that unfolds it
    for name in ("single.r1", "three.r1"):
        row = visit.page.get_by_role("row").filter(has=visit.page.get_by_role("link", name=name))
        row.get_by_role("checkbox").first.check()
    visit.page.get_by_role("button", name="Compare").click()
    expect(visit.page.get_by_text("Comparing 2 Runs from 1 Experiment")).to_be_visible()
    expect(visit.page.get_by_text("step_ms", exact=True).first).to_be_attached()
