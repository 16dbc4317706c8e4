"""What every test gets: its own ``DPEXP_HOME``, no setting of the developer, and skips that count in CI.

A test marked ``gpu`` or ``multigpu`` is skipped where the accelerators are missing. In CI (``CI`` is
set) any other skip is a failure: CI must run all tests that it is meant to cover.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import shutil
import signal
import sqlite3
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ACCELERATORS_NEEDED = {"gpu": 1, "multigpu": 2}
OURS = ("DPEXP_", "MLFLOW_")
MAY_LACK = (
    "hypothesis", "matplotlib", "mlflow", "playwright", "psutil", "transformers",
)  # fmt: skip
"""Packages that no test of an accelerator needs: its machine may lack them."""
collect_ignore = ["integrations"]
"""What is collected only where it is named: its packages are those of requirements-frameworks.lock."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """A worker more than cores, at most four: some tests wait, and what a worker imports costs 12 s."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, cores + 1)


def pytest_configure() -> None:
    """Disable MLflow's telemetry, which reads this when it is imported; enable Ctrl-C."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    # A second thread does not speed up models of a few numbers; with every core busy it slows them down.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of background processes, and so of their children
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(ModuleNotFoundError):
        from hypothesis import settings

        settings.register_profile("untimed", deadline=None)  # any example may take longer than 200 ms
        settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search what is imported for cycles neither now nor later: that took a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Silence MLflow's queue of traces, which would log at exit, after pytest's closing line."""
    logging.getLogger("mlflow.tracing").setLevel(logging.WARNING)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder whose name has what a user's may have: spaces, quotes, signs, a digit alone."""
    folder = tmp_path / "5 o'é #1+("
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def dpexp_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``DPEXP_HOME`` of this test, an empty folder; no other variable of dpexp or MLflow is set."""
    for name in list(os.environ):
        if name.startswith(OURS) and name != "MLFLOW_DISABLE_TELEMETRY":
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DPEXP_HOME", str(home))
    monkeypatch.setenv("PET_LOG_DIR", str(tmp_path / "torchrun"))  # which torchrun makes, and leaves
    return home


@pytest.fixture
def runs(dpexp_home: Path) -> Path:
    """The folder of the journals of this test's home, which the first of them makes."""
    return dpexp_home / "runs"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models are fastest on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """The temporary directory of the processes that this test starts; only torch's cache may stay in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert not [path for path in folder.rglob("*") if not path.name.startswith("torchinductor_")]


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store before its first run."""
    from dpexp.tracking.store import create_file

    folder = tmp_path_factory.mktemp("empty-store")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow, pydantic and SQLAlchemy warn of each other
        create_file(folder / "mlflow.db", folder / "mlruns")
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder / "mlflow.db"


@pytest.fixture
def home_with_store(dpexp_home: Path, empty_store: Path) -> Path:
    """``dpexp_home`` after a store was created in it, which takes 0.5 s of CPU time: here it is copied."""
    shutil.copyfile(empty_store, dpexp_home / "mlflow.db")
    return dpexp_home


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, one for all tests of a file: while it runs, no other event loop can in this process."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium here: apt-get install chromium")
    without = ("gpu", "quic", "background-networking", "component-update", "sync")
    arguments = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in without)]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def forked_child_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the child runs that this test starts itself, as a sweep does: a new process costs 3.5 s."""
    from helpers.command_lines import run_forked

    from dpexp.study import child_run

    monkeypatch.setattr(child_run, "run_process", run_forked)


def accelerators_needed(item: pytest.Item) -> int:
    """How many accelerators a test's marks require; 0 for a test that runs anywhere."""
    return max(
        (count for mark, count in ACCELERATORS_NEEDED.items() if item.get_closest_marker(mark)), default=0
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need more accelerators than present; torch is imported only if a test needs some."""
    for item in filter(accelerators_needed, items):
        from dpexp.devices import accelerators

        if (needed := accelerators_needed(item)) > (present := len(accelerators())):
            reason = f"needs {needed} accelerator(s), this machine has {present}"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, a skipped test is a failed one."""
    report = yield
    if not accelerators_needed(item) and not hasattr(report, "wasxfail"):
        fail_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that needs a missing package is skipped. In CI, a skipped module is a failed one."""
    report = yield
    skip_without_package(report)
    fail_skipped(report)
    return report


def skip_without_package(report: pytest.CollectReport) -> None:
    """Turn the failed import of a package that a machine may lack into a skip that names it."""
    found = re.search(r"^E +ModuleNotFoundError: No module named '(\w+)", report.longreprtext, re.MULTILINE)
    if report.failed and found and found[1] in MAY_LACK:
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {found[1]} is not installed")


def fail_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip in CI into a failure that names the reason."""
    if report.skipped and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where only gpu and multigpu tests may be skipped: {reason}"
