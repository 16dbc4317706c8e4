"""What every test gets: a home of its own, no setting of the developer's, and honest skips.

A test marked ``gpu`` or ``multigpu`` is skipped where the accelerators are missing. In CI (``CI`` is
set) any other skip is a failure: what CI is meant to cover must have run.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from command_lines import CommandLines

ACCELERATORS_NEEDED = {"gpu": 1, "multigpu": 2}
OURS = ("DPEXP_", "MLFLOW_")
LONG = (
    "checkpoint",
    "ddp",
    "hosts",
    "servers",
    "worker",
    "upload",
    "fsdp",
    "browser",
)
"""The test files that take longest: they come first, so that no worker is left alone with one at the end."""


def in_ci() -> bool:
    """True where the environment says ``CI``, as CI services do."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def pytest_configure() -> None:
    """MLflow reads this while it is imported: no test reports to its makers."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    # Models of a few numbers gain nothing from a second thread, and with every core busy they lose much.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    obey_ctrl_c()


def obey_ctrl_c() -> None:
    """A shell starts what runs in the background with Ctrl-C ignored, and so would be every process that a
    test starts: those are to be ended by it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """pytest's closing line is the last: MLflow's queue of traces says nothing while it empties at exit."""
    logging.getLogger("mlflow.tracing").setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def dpexp_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``DPEXP_HOME`` of this test, an empty folder; no other variable of ours is set."""
    for name in list(os.environ):
        if name.startswith(OURS) and name != "MLFLOW_DISABLE_TELEMETRY":
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DPEXP_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def command_lines() -> CommandLines:
    """Runs command lines of scripts/run.py cheaply, each in a process of its own."""
    from command_lines import shared

    return shared()


def accelerators_needed(item: pytest.Item) -> int:
    """How many accelerators a test's marks ask for; 0 for a test that runs anywhere."""
    return max(
        (count for mark, count in ACCELERATORS_NEEDED.items() if item.get_closest_marker(mark)), default=0
    )


def lacks_extra(item: pytest.Item) -> bool:
    """Whether a test is marked for a package of an optional extra that is not installed."""
    mark = item.get_closest_marker("extra")
    return mark is not None and importlib.util.find_spec(mark.args[0]) is None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs an extra that is not installed; skip what needs more accelerators than there are.

    Torch is asked only where a test needs accelerators. The longest files come first.
    """
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONG)
    without = [item for item in items if lacks_extra(item)]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]
    needy = [item for item in items if accelerators_needed(item)]
    if not needy:
        return
    from dpexp.devices import accelerators

    present = len(accelerators())
    for item in needy:
        if accelerators_needed(item) > present:
            reason = f"needs {accelerators_needed(item)} accelerator(s), this machine has {present}"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, a test that skips itself has failed."""
    report = yield
    if not accelerators_needed(item) and not hasattr(report, "wasxfail"):
        fail_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, a module that skips itself has failed."""
    report = yield
    fail_skipped(report)
    return report


def fail_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip in CI into a failure that names the reason."""
    if report.skipped and in_ci():
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing but gpu and multigpu tests may be: {reason}"
