"""The conftest: a skip in CI is a failure, and no test sees the developer's settings."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import ROOT
from conftest import LONG

SKIPS = {
    "test": "import pytest\ndef test_a():\n    pytest.skip('no server for a test')\n",
    "mark": "import pytest\n@pytest.mark.skip(reason='no server for a mark')\ndef test_a():\n    pass\n",
    "module": "import pytest\npytest.skip('no server for a module', allow_module_level=True)\n",
}


def pytest_on(
    sources: dict[str, str] | str,
    folder: Path,
    ci: str,
    *rest: str,
    before: tuple[str, ...] = (),
    workers: str = "0",
) -> subprocess.CompletedProcess[str]:
    """Run modules of tests with this conftest in a process of their own, in ``folder``."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {shlex.quote(str(ROOT))}\nmarkers =\n    gpu: one\n    multigpu: two\n"
    )
    for name, source in ({"inner": sources} if isinstance(sources, str) else sources).items():
        (folder / f"test_{name}.py").write_text(source)
    return subprocess.run(
        [
            *before,
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-n",
            workers,
            "-q",
            "-ra",
            *rest,
        ],
        cwd=folder,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


def test_there_are_two_workers_a_core_and_at_most_four(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As xdist asks for ``-n auto``."""
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    found = pytestconfig.hook.pytest_xdist_auto_num_workers(config=pytestconfig)
    assert found == min(4, 2 * len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("name", LONG)
def test_every_long_file_exists(name: str) -> None:
    assert list((ROOT / "tests").rglob(f"{name}.py"))


def asserts_in(node: ast.AST) -> int:
    return sum(isinstance(each, ast.Assert) for each in ast.walk(node))


def loops_that_may_be_empty(source: str) -> list[str]:
    """The tests whose only assertions are in a loop over files that it finds, of which there may be none."""
    found = []
    for test in ast.walk(ast.parse(source)):
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            loops = [node for node in ast.walk(test) if isinstance(node, ast.For)]
            over_files = [
                node for node in loops if re.search(r"glob\(|iterdir\(|_of\(", ast.unparse(node.iter))
            ]
            found += [test.name for loop in over_files if asserts_in(loop) == asserts_in(test) > 0]
    return found


def test_no_test_passes_because_it_found_no_files() -> None:
    found = {
        path.name: loops_that_may_be_empty(path.read_text()) for path in (ROOT / "tests").rglob("test_*.py")
    }
    assert len(found) > 80
    assert {name: tests for name, tests in found.items() if tests} == {}
    looped = "def test_a():\n    for path in folder.glob('*'):\n        assert path\n"
    assert loops_that_may_be_empty(looped) == ["test_a"]
    assert loops_that_may_be_empty(f"{looped}    assert list(folder.iterdir())\n") == []


@pytest.mark.parametrize("workers", ["0", "1"])
def test_skip_in_ci_is_a_failure_that_names_its_reason(workers: str, tmp_path: Path) -> None:
    run = pytest_on(SKIPS, tmp_path, "true", "--continue-on-collection-errors", workers=workers)
    assert run.returncode in (1, 2), run.stdout
    for kind in SKIPS:
        assert re.search(rf"skipped in CI.*no server for a {kind}", run.stdout)


@pytest.mark.parametrize(("ci", "outcome"), [("", "2 skipped, 1 error"), ("true", "skipped in CI")])
def test_a_module_that_needs_a_missing_package_is_a_skip(ci: str, outcome: str, tmp_path: Path) -> None:
    missing = "No module named 'mlflow.entities'"
    (tmp_path / "mlflow.py").write_text(f'raise ModuleNotFoundError("{missing}")\n')
    sources = {"lacks": "import mlflow\n", "typo": "import misspelt\n", "skips": SKIPS["mark"]}
    run = pytest_on(sources, tmp_path, ci, "--continue-on-collection-errors")
    assert outcome in run.stdout
    assert "mlflow is not installed" in run.stdout
    assert "No module named 'misspelt'" in run.stdout


def test_in_ci_a_multigpu_test_may_be_skipped_and_an_xfail_is_not_a_skip(tmp_path: Path) -> None:
    source = (
        "import pytest, torch\n"
        "@pytest.mark.multigpu\n"
        "def test_a():\n    assert torch.accelerator.device_count() >= 2\n"
        "@pytest.mark.xfail(strict=True)\n"
        "def test_b():\n    raise ValueError\n"
    )
    run = pytest_on(source, tmp_path, ci="true")
    assert run.returncode == 0, run.stdout
    assert "1 xfailed" in run.stdout


def test_every_test_has_its_own_home_and_no_other_setting(tmp_path: Path, dpexp_home: Path) -> None:
    assert Path(os.environ["DPEXP_HOME"]) == dpexp_home == tmp_path / "home"
    assert not list(dpexp_home.iterdir())
    settings = {name for name in os.environ if name.startswith(("DPEXP_", "MLFLOW_"))}
    assert settings == {"DPEXP_HOME", "MLFLOW_DISABLE_TELEMETRY"}


def test_ctrl_c_ends_a_child_process_although_the_tests_run_in_the_background(tmp_path: Path) -> None:
    source = (
        "import signal, subprocess, sys\n"
        "def test_a():\n"
        "    code = 'import signal, time; print(signal.getsignal(signal.SIGINT)); time.sleep(600)'\n"
        "    process = subprocess.Popen([sys.executable, '-u', '-c', code], stdout=subprocess.PIPE)\n"
        "    assert b'default_int_handler' in process.stdout.readline()\n"
        "    process.send_signal(signal.SIGINT)\n"
        "    assert process.wait(300) != 0\n"
    )
    run = pytest_on(source, tmp_path, ci="", before=("sh", "-c", "trap '' INT; exec \"$@\"", "sh"))
    assert run.returncode == 0, run.stdout
