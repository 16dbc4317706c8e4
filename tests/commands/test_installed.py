"""The installed package: ``pip install`` gives the command ``dpexp``, which works in any folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from helpers.command_lines import ROOT

from dpexp import __version__
from dpexp.commands.main import app
from dpexp.config.strategy_options import STRATEGY_OPTIONS

QUICK = ["--virtual", "2", "--steps", "2", "--warmup", "1", "--phase-steps", "1"]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with dpexp installed from this folder, and with this one's packages."""
    folder = tmp_path_factory.mktemp("installed")
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "dpexp", folder / "source" / "dpexp", ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "--quiet"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    packages = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
    Path(packages, "packages.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run([*pip, "install", *options, str(folder / "source")], check=True)
    return venv / "bin"


def run(program: Path, *words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program with ``DPEXP_HOME`` unset, in a folder."""
    environment = {key: value for key, value in os.environ.items() if key != "DPEXP_HOME"} | variables
    return subprocess.run(
        [str(program), *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory."""
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.mark.slow
def test_its_commands_run_in_any_folder_and_keep_their_runs_there(installed: Path, folder: Path) -> None:
    dpexp = installed / "dpexp"
    done = run(dpexp, "run", "hybrid", *QUICK, "--no-track", folder=folder)
    assert done.returncode == 0, done.stderr
    (journal,) = folder.glob("runs/*/journal.jsonl")
    run_id = journal.parent.name
    for command in (f"dpexp runs show {run_id}", "dpexp run hybrid --", "dpexp report"):
        assert command in done.stdout
    assert "scripts/" not in done.stdout
    assert run_id[:8] in run(dpexp, "runs", "list", folder=folder).stdout
    assert "hybrid" in run(dpexp, "report", folder=folder).stdout
    sites = installed.parent.glob("lib/python*/site-packages")
    assert not [path for site in sites for path in site.iterdir() if path.name in ("runs", "mlflow.db")]


def test_its_package_is_complete_and_typed(installed: Path, folder: Path) -> None:
    where = "import dpexp, pathlib; print(pathlib.Path(dpexp.__file__).parent)"
    package = Path(run(installed / "python", "-c", where, folder=folder).stdout.strip())
    assert package.is_relative_to(installed.parent)
    committed = {path.relative_to(ROOT / "dpexp") for path in (ROOT / "dpexp").rglob("*")}
    names = {
        path for path in committed if "__pycache__" not in path.parts and (ROOT / "dpexp" / path).is_file()
    }
    assert {path for path in names if not (package / path).is_file()} == set()
    assert (package / "py.typed").is_file()
    assert run(installed / "dpexp", "--version", folder=folder).stdout == f"dpexp {__version__}\n"


def test_each_script_is_a_subcommand() -> None:
    import typer

    group = typer.main.get_command(app)
    commands = group.commands  # type: ignore[attr-defined]
    assert set(commands) == {path.stem for path in (ROOT / "scripts").glob("*.py")}
    assert set(STRATEGY_OPTIONS) <= set(commands["run"].commands)
