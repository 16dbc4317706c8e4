"""MLflow's pages of real runs, served by ``scripts/ui.py``, in a real browser.

What they show, that no request leaves the machine, and that the server ends with all its processes.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from helpers import journals
from helpers.command_lines import HELPERS, ROOT, script
from helpers.servers import free_port
from helpers.tracking_processes import TIMEOUT_S, wait_until_gone
from playwright.sync_api import Browser, Page, expect

from dpexp.record.fold import finish

TIMEOUT_MS = 300_000
RUN = ("whole", "--model", f"{HELPERS}/slow_model.py:SlowLinear", "--virtual", 2, "--steps", 6, "--warmup", 1)
LOCAL_STORAGE = {
    "mlflow.workflowType_v1": '"machine_learning"',
    "mlflow.assistant.panelOpen_v1": "false",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
}
"""What MLflow's pages store at the first visit: with it they show no guided tour."""
TABLES = {
    "shapes.json": ["[[30, 5]]", "[[15, 5]]", "[[5, 2]]"],
    "device_map.json": ["weight", "cpu:0", "float32"],
}


@pytest.fixture
def home(home_with_store: Path) -> Path:
    """A home with a real run and a sweep of two, all delivered."""
    runs = home_with_store / "runs"
    ran = script("run.py", *RUN, "--run-name", "overlap", "--quiet", "--no-track")
    assert ran.returncode == 0, ran.stderr
    finish(journals.end(journals.begin(runs, "sweep", strategy="sweep", name="a sweep", experiment="swept")))
    for name in ("single.r1", "three.r1"):
        finish(journals.complete(runs, parent="sweep", name=name, experiment="swept"))
    synced = script("runs.py", "sync", *(path.name for path in runs.iterdir()))
    assert synced.returncode == 0, synced.stderr
    return home_with_store


@pytest.fixture
def server(home: Path, temporary_folder: Path) -> Iterator[subprocess.Popen[str]]:
    """``scripts/ui.py``, running."""
    command = [sys.executable, str(ROOT / "scripts" / "ui.py"), "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
def requests() -> list[str]:
    """The addresses that the page asks for."""
    return []


@pytest.fixture
def page(browser: Browser, requests: list[str]) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1500, "height": 1000})
    context.set_default_timeout(TIMEOUT_MS)
    expect.set_options(timeout=TIMEOUT_MS)
    for key, value in LOCAL_STORAGE.items():
        context.add_init_script(f"try {{ localStorage.setItem({key!r}, {value!r}) }} catch {{}}")
    context.on("request", lambda request: requests.append(request.url))
    yield context.new_page()
    context.close()


def test_mlflow_shows_a_run_and_a_sweep_and_the_server_ends_with_all_processes(
    server: subprocess.Popen[str], page: Page, requests: list[str]
) -> None:
    assert server.stdout is not None
    links = dict(server.stdout.readline().strip().split(": ") for _ in range(2))
    assert all(re.match(r"http://127\.0\.0\.1:\d+/#/experiments/\d+/runs\?", link) for link in links.values())
    page.goto(links["dpexp"])
    shows_verdict_and_speed_in_the_list(page)
    page.get_by_role("link", name="overlap").click()
    shows_the_summary(page)
    shows_metrics(page)
    shows_artifacts(page)
    page.goto("about:blank")
    page.goto(links["swept"])
    shows_the_runs_of_the_sweep_under_it(page)
    assert {urlsplit(address).hostname for address in requests} == {"127.0.0.1", None}, requests

    as_remote = script("ui.py", MLFLOW_TRACKING_URI=links["dpexp"].partition("/#")[0])
    assert dict(line.split(": ") for line in as_remote.stdout.splitlines()) == links
    port = urlsplit(links["dpexp"]).port
    busy = script("ui.py", "--port", port)
    assert busy.returncode == 1
    assert f"error: port {port} of 127.0.0.1 cannot be used (Address already in use)" in busy.stderr

    children = psutil.Process(server.pid).children(recursive=True)
    opened = [c for child in children for c in child.net_connections() if c.status == psutil.CONN_LISTEN]
    assert {connection.laddr.ip for connection in opened} == {"127.0.0.1"}
    server.send_signal(signal.SIGTERM)
    _, err = server.communicate(timeout=TIMEOUT_S)
    assert (server.returncode, err) == (0, "Press Ctrl-C to stop.\n")
    for child in children:
        wait_until_gone(child.pid)


def shows_verdict_and_speed_in_the_list(page: Page) -> None:
    """Without any set-up: the link opens a view of the experiment."""
    for column in ("dpexp.verified", "step_ms", "samples_per_s"):
        expect(page.get_by_role("columnheader").filter(has_text=column).first).to_be_visible()
    expect(page.get_by_role("gridcell", name="True", exact=True).first).to_be_visible()


def shows_the_summary(page: Page) -> None:
    page.get_by_role("tab", name="Overview", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^Run overlap"))).to_be_visible()
    expect(page.get_by_text("VIRTUAL devices, verified")).to_be_visible()
    page.get_by_text("Show more").first.click()
    expect(page.get_by_role("heading", name="Where a step goes")).to_be_visible()


def shows_metrics(page: Page) -> None:
    """As charts, grouped by prefix."""
    page.get_by_role("tab", name="Model metrics", exact=True).click()
    for group in ("phases_ms", "time_ms"):
        expect(page.get_by_text(group, exact=True).first).to_be_visible()
    expect(page.locator(".js-plotly-plot, .plot-container").first).to_be_visible()


def shows_artifacts(page: Page) -> None:
    """Tables, figures, and the timeline in the sandboxed preview."""
    page.get_by_role("tab", name="Artifacts", exact=True).click()
    for table, words in TABLES.items():
        page.get_by_text(table, exact=True).click()
        expect(page.get_by_text("View as table")).to_be_visible()
        for word in words:
            expect(page.get_by_text(word, exact=True).first).to_be_visible()
    page.get_by_text("timeline.html", exact=True).click()
    bar = page.frame_locator("iframe").locator(".bar", has_text="replica 1")
    expect(bar).to_be_visible()
    expect(bar).to_have_attribute("title", re.compile("parallel_apply, replica 1"))
    page.get_by_text("phases.png", exact=True).click()
    figure = "img[src^='blob:'], img[src*='get-artifact'], .image-outer-container img"
    expect(page.locator(figure).first).to_be_visible()
    assert page.locator(figure).first.evaluate("image => image.naturalWidth") > 500


def shows_the_runs_of_the_sweep_under_it(page: Page) -> None:
    sweep = page.get_by_role("row").filter(has=page.get_by_role("link", name="a sweep"))
    expect(sweep).to_be_visible()
    expect(page.get_by_role("link", name="single.r1")).to_have_count(0)
    sweep.get_by_role("button").first.click()  # the sign that unfolds it
    for name in ("single.r1", "three.r1"):
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=name))
        row.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text("Comparing 2 Runs from 1 Experiment")).to_be_visible()
    expect(page.get_by_text("step_ms", exact=True).first).to_be_attached()
