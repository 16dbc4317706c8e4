"""Set-up: lock, environment.yml, pyproject and README's commands agree, and they work."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import needs
import pytest
import yaml
from command_lines import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import dpexp

SUPPORTED = ("3.11", "3.12", "3.13")
INSTALLERS = {"pip", "wheel"}
"""What a new environment may contain in addition to the lock."""

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


RUNNING, DEVELOPING = "requirements.lock", "requirements-dev.lock"


def lock(name: str = DEVELOPING) -> dict[str, str]:
    """{name: version} of a lock and of those that it includes; any other line must be ``name==version``."""
    pins = {}
    for line in (ROOT / name).read_text().splitlines():
        if line.startswith("-r "):
            pins |= lock(line.removeprefix("-r "))
        elif not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line)
            assert match, f"{name}: '{line}' is not a plain pin"
            pins[canonicalize_name(match[1])] = match[2]
    return pins


def conda() -> dict[str, Any]:
    environment: dict[str, Any] = yaml.safe_load((ROOT / "environment.yml").read_text())
    return environment


def pip_section() -> list[str]:
    """The ``pip:`` section of environment.yml, its items as arguments of ``pip install``."""
    (section,) = [part["pip"] for part in conda()["dependencies"] if isinstance(part, dict)]
    return [argument for item in section for argument in shlex.split(item)]


def readme_commands() -> list[str]:
    """The lines of README that create the environment."""
    return re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(), re.MULTILINE)


def direct_requirements() -> list[Requirement]:
    """What pyproject requires for running, and for developing and for Slurm."""
    extras = PROJECT["optional-dependencies"]
    return [*map(Requirement, [*PROJECT["dependencies"], *extras["slurm"], *extras["dev"]])]


# --- the places agree ----------------------------------------------------------------------------


@pytest.mark.parametrize("requirement", direct_requirements(), ids=lambda requirement: requirement.name)
def test_lock_pins_every_direct_dependency_within_its_range(requirement: Requirement) -> None:
    assert requirement.specifier.contains(lock()[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("name", [RUNNING, DEVELOPING])
def test_lock_is_as_its_tool_writes_it(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    script = (ROOT / ".ci" / "lock").read_text()
    others = [line for line in lines if line.startswith(("#", "-r "))]
    assert all(line in script for line in others)
    assert lines[: len(others)] == others
    names = [line.partition("==")[0] for line in lines[len(others) :]]
    assert names == sorted({canonicalize_name(name) for name in names})


def test_a_user_installs_what_runs_need_and_nothing_to_test_with() -> None:
    running = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert running <= lock(RUNNING).keys()
    assert {"hypothesis", "mypy", "playwright", "pytest", "ruff"} <= lock(DEVELOPING).keys() - lock(
        RUNNING
    ).keys()


def test_conda_installs_python_and_pip_and_the_lock_the_rest() -> None:
    names = [part for part in conda()["dependencies"] if isinstance(part, str)]
    assert names == ["python=3.11", "pip"]
    assert pip_section() == ["-r", RUNNING]
    assert conda()["channels"] == ["conda-forge", "nodefaults"]


def test_supported_pythons_are_the_same_everywhere() -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{minor}" for minor in range(20) if allowed.contains(f"3.{minor}")] == list(SUPPORTED)
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named == list(SUPPORTED)
    checked = re.findall(r"mypy --python-version (\S+)", (ROOT / ".ci" / "run").read_text())
    assert checked == list(SUPPORTED)
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert config["mypy"]["python_version"] == SUPPORTED[0]
    assert config["ruff"]["target-version"] == "py" + SUPPORTED[0].replace(".", "")


def test_ci_tests_the_lowest_and_the_newest_versions_that_the_page_promises() -> None:
    script = (ROOT / ".ci" / "versions").read_text()
    pythons = dict(re.findall(r"\[(lowest|newest)\]=(3\.\d+)", script))
    assert pythons == {"lowest": SUPPORTED[0], "newest": SUPPORTED[-1]}
    lowest, newest = (lock(f".ci/{name}.lock") for name in pythons)
    for requirement in direct_requirements():
        for pins in (lowest, newest):
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
    (torch,) = [requirement for requirement in direct_requirements() if requirement.name == "torch"]
    assert torch.specifier == SpecifierSet(f">={lowest['torch'].removesuffix('.0')}")
    range_of_torch = " to ".join(pins["torch"].removesuffix(".0") for pins in (lowest, newest))
    for page in ("README.md", "docs/installing.md"):
        assert f"torch {range_of_torch}" in (ROOT / page).read_text(), page
    assert "transformers" in newest, "without it, no test of its models runs"


def test_readme_prints_two_commands_that_make_the_environment_and_use_it() -> None:
    assert readme_commands() == [
        f"python3 -m venv .venv && .venv/bin/pip install -r {name} && .venv/bin/python {words}"
        for name, words in ((RUNNING, "scripts/run.py hybrid"), (DEVELOPING, "-m pytest"))
    ]


def test_ci_runs_the_commands_of_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"readme_command '(.*)'\)", script) == [r"scripts/run\.py hybrid", "-m pytest"]
    assert "pip install" not in script
    assert script.endswith("\nbash .ci/versions\n")
    named = re.search(r"^quick=\((.*?)\)", (ROOT / ".ci" / "versions").read_text(), re.MULTILINE | re.DOTALL)
    assert named
    assert [path for path in named[1].split() if not (ROOT / path).exists()] == []


# --- what is imported is declared ----------------------------------------------------------------


def imported_distributions(*folders: str) -> dict[str, set[str]]:
    """{top-level name that a file of these folders imports: the distributions that it may come from}."""
    owners = metadata.packages_distributions()
    pattern = re.compile(r"^\s*(?:import|from) ([A-Za-z_]\w*)", re.MULTILINE)
    names = {
        name
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for name in pattern.findall(path.read_text())
    }
    return {name: set(map(canonicalize_name, owners[name])) for name in names if name in owners}


def test_package_and_scripts_import_only_declared_dependencies() -> None:
    extra = PROJECT["optional-dependencies"]["slurm"]
    declared = {canonicalize_name(Requirement(text).name) for text in [*PROJECT["dependencies"], *extra]}
    imported = imported_distributions("dpexp", "scripts")
    assert {"torch", "mlflow", "typer"} <= imported.keys()
    assert [name for name, owners in imported.items() if not owners & declared] == []


def test_package_and_scripts_import_every_declared_dependency() -> None:
    used = set().union(*imported_distributions("dpexp", "scripts").values())
    declared = [canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]]
    assert [name for name in declared if name not in used] == []


def test_tests_import_only_declared_dependencies() -> None:
    declared = {canonicalize_name(requirement.name) for requirement in direct_requirements()}
    imported = imported_distributions("tests")
    assert "pytest" in imported
    assert [name for name, owners in imported.items() if not owners & declared] == []


# --- an environment made from the lock -----------------------------------------------------------


def installed(python: Path) -> dict[str, str]:
    """{name: version} of an environment, without the local part of a version (torch's ``+cpu``)."""
    verbose = os.environ | {"PIP_QUIET": "0"}  # the caller may have set PIP_QUIET
    command = [python, "-m", "pip", "list", "--format", "json"]
    freeze = subprocess.run(command, capture_output=True, text=True, check=True, env=verbose)
    return {
        canonicalize_name(row["name"]): row["version"].partition("+")[0] for row in json.loads(freeze.stdout)
    }


def closure(name: str) -> set[str]:
    """A distribution and everything that it requires on this machine: torch and its CUDA libraries."""
    known: set[str] = set()
    new = {canonicalize_name(name)}
    while new:
        current = new.pop()
        known.add(current)
        try:
            wanted = [Requirement(text) for text in metadata.requires(current) or []]
        except metadata.PackageNotFoundError:
            continue
        new |= {
            canonicalize_name(r.name) for r in wanted if not r.marker or r.marker.evaluate({"extra": ""})
        } - known
    return known


def matches_the_lock(python: Path) -> bool:
    """Whether an environment contains exactly the lock and what torch requires on this machine."""
    found, wanted = installed(python), lock()
    extra = found.keys() - wanted.keys() - INSTALLERS - closure("torch")
    return not extra and all(found.get(name) == version for name, version in wanted.items())


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The python of an environment made from the lock for developing and nothing else.

    The current environment if it contains exactly these packages (README's and CI's does), else a new one,
    which takes pip a minute or two.
    """
    here = Path(sys.executable)
    if sys.prefix != sys.base_prefix and matches_the_lock(here):
        yield here
        return
    folder = tmp_path_factory.mktemp("environment")
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", DEVELOPING], cwd=ROOT, check=True)
    yield python
    shutil.rmtree(folder)  # 2 GB


def test_an_environment_of_the_lock_is_whole(environment: Path) -> None:
    """That the lock for running is enough for a run is seen by ``.ci/run``, which begins with it alone."""
    assert matches_the_lock(environment)
    subprocess.run([environment, "-m", "pip", "check"], check=True)


# --- the repository is clean ---------------------------------------------------------------------

ELSEWHERE = re.compile(
    r"py[p]i\.org|[p]ythonhosted|[n]pmjs|conda\.[a-z]*anaconda|[d]eb\.debian|download\.[p]ytorch|/opt/[p]ypi"
    r"|(?<![\w.])/(?:home|[U]sers)/(?!user\b|you\b|me\b)\w+|(?<![\w.])/[r]oot/|(?<![\w.])/work/(?:[m]ain|[s]hared|[v]env)"
)
"""Hosts of package registries, and paths of a developer's machine."""


def committed_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


@needs.checkout
def test_no_committed_file_names_a_registry_host_or_a_path_of_a_developers_machine() -> None:
    found = []
    for path in committed_files():
        if path.is_file():
            text = path.read_bytes().decode("utf-8", "replace")
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in ELSEWHERE.finditer(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["https://py" + "pi.org/simple", "/ro" + "ot/.cache", "/ho" + "me/ada/dpexp"]
)
def test_hygiene_check_catches(text: str) -> None:
    assert ELSEWHERE.search(f'"{text}"')


def test_changelog_has_a_dated_entry_for_this_version_and_so_has_the_citation() -> None:
    assert PROJECT["dynamic"] == ["version"]
    newest = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == dpexp.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], str(citation["date-released"])) == newest.groups()
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == PROJECT["license"]


def test_the_workflow_of_a_forge_runs_the_complete_check() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": "bash .ci/run"}
    assert job["container"]["image"].startswith(f"python:{SUPPORTED[0]}-")
    (checkout,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
    assert checkout["with"]["fetch-depth"] == 0, "experiments name earlier commits"


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(
        str(path.relative_to(ROOT))
        for glob in ("docs/*.md", "experiments/**/README.md")
        for path in ROOT.glob(glob)
    ),
]


@pytest.mark.parametrize("page", PAGES)
def test_files_and_tests_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    paths = set(re.findall(r"\b(?:dpexp|tests|scripts|docs)/[\w/-]+(?:\.\w+)?", text))
    new = re.findall(r"^```python\n# (dpexp/[\w/]+\.py)$", text, re.MULTILINE)  # which test_extending.py adds
    missing = {path for path in paths - {*new} if not (ROOT / path).exists()}
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("**/test_*.py"))
    missing |= {name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in tests}
    assert not missing
