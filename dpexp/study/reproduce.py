"""Reproduce: run a recorded run again, and check which of its results are the same.

::

    record --> config, threads as recorded --> run in a child process --> new record
       |                                                                      |
       +--> compare (``comparisons.py``): facts, bits of weights and outputs, losses, time
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

from dpexp import live
from dpexp.config.errors import ConfigError, no_file
from dpexp.config.names import fitted
from dpexp.config.printable import printable_line
from dpexp.config.process import ROOT, command, home
from dpexp.config.run_config import RunConfig, known_options
from dpexp.engine.facts import file_hashes, is_relative
from dpexp.engine.references import references
from dpexp.record.record import Record, Row
from dpexp.record.redact import HIDDEN
from dpexp.record.runs import IMPORTED
from dpexp.study.child_run import run_in_child
from dpexp.study.reproduction import Reproduction, compare_records, incomparable
from dpexp.study.worktree import commit_of, is_in_history, worktree


def config_of(record: Record, *, track: bool = True) -> Row:
    """The config that a Record was made with, its number of threads spelled out, filed under ``reproduce``.

    It is tracked if the run was, and ``track`` allows it.
    Raises ConfigError for a Record of something else than a run of dpexp.
    """
    if not record.config.get("strategy"):
        raise ConfigError(f"{record.name or record.run_id} cannot be repeated: its Record has no config")
    config = {key: value for key, value in record.config.items() if value is not None}
    if record.environment.get("threads"):
        config["threads"] = record.environment["threads"]
    config["track"] = track and config.get("track", True)
    return config | {"experiment": "reproduce", "run_name": fitted(f"again {record.name}", "again")}


def reproduce(
    record: Record,
    *,
    exact: bool = False,
    trust: bool = False,
    warn: Callable[[str], None] = warnings.warn,
    runs: int = 1,
    track: bool = True,
) -> Reproduction:
    """Run it again and compare; ``exact`` from a checkout of the recorded commit.

    It runs ``runs`` times where its times can be compared: from two on they have an interval. What it runs is
    delivered to MLflow if the recorded run was to be, and ``track`` allows it.

    ``trust`` also runs code and reads files that the Record names, as one's own may; ``warn`` is called,
    before anything runs, for each file that has changed. Raises ConfigError if the Record is not trusted, and
    if its config, data or commit is not available here.
    """
    config = config_of(record, track=track)
    if used := live.live_options(config):
        raise live.gone(f"--{used[0]} of run {record.run_id}, {config[used[0]]},")
    if not exact:
        config = known_options(config)
        RunConfig.from_dict(config, where=f"record {record.run_id}")
    check_files(record, config)
    if not trust:
        check_trust(record, config, exact=exact)
    for change in changed_files(record, config):
        warn(change)
    with worktree(record) if exact else nullcontext(ROOT) as root:
        first, *repeats = _repeated(record, config, root, runs)
    return compare_records(record, first, repeats, exact=exact)


def _repeated(record: Record, config: Row, root: Path, runs: int) -> list[Record]:
    """New Records of the config: one where times cannot be compared, or where it does not finish."""
    found: list[Record] = []
    while not found or (len(found) < runs and not incomparable(record, found[0])):
        child = run_in_child(config, {"DPEXP_HOME": str(home())}, root)
        if child.record is None:
            raise ConfigError(f"the run could not be repeated: {child.error or 'it printed no Record'}")
        found.append(child.record)
        if child.record.status != "finished":
            break
    return found


def is_foreign(folder: Path) -> bool:
    """Whether a run came from another machine; a folder that is not one of this home's runs did as well."""
    return (folder / IMPORTED).exists() or folder.resolve().parent != home() / "runs"


def check_trust(record: Record, config: Row, *, exact: bool) -> None:
    """Raises ConfigError if running the config would use code or files of someone else; shows which."""
    named = list(_named(config, exact))
    if exact and not is_in_history(commit_of(record)):
        named.append(f"--exact runs commit {commit_of(record)}, which is not in this checkout's history")
    if named:
        lines = "".join(f"\n  {printable_line(line)}" for line in named)
        raise ConfigError(
            f"record {printable_line(record.run_id)} was not made in {home()}, and it names what dpexp does "
            f"not have:{lines}\nNothing was run. Look at it; --trust runs it"
        )


def _named(config: Row, exact: bool) -> Iterator[str]:
    """What the config names outside of dpexp, in words. Raises ConfigError for a config that cannot run."""
    try:
        parsed = RunConfig.from_dict(config, where="record")
    except ConfigError as error:
        if not exact:
            raise
        yield f"--exact runs a config that this dpexp does not know ({error})"
        return
    yield from (str(each) for each in references(parsed) if each.is_outside)


def changed_files(record: Record, config: Row) -> list[str]:
    """The files that the config names and that are different from those of the run, in words."""
    try:
        present = file_hashes(references(RunConfig.from_dict(known_options(config))))
    except ConfigError:  # of another dpexp, which --exact runs
        return []
    recorded = _hashes(record)
    return [
        f"{printable_line(f'{path} has changed since the run (SHA-256 {recorded[path][:12]}')}… then, "
        f"{now[:12]}… now): {_started_elsewhere(record, path) or 'restore it'}, or expect other results"
        for path, now in ((row["path"], row["sha256"]) for row in present)
        if recorded.get(path, now) != now
    ]


def check_files(record: Record, config: Row) -> None:
    """Raises ConfigError for a file that the run found in another directory and that this one lacks.

    And for a credential, which no Record holds.
    """
    for name in ("model", "data", "loss"):
        if HIDDEN in str(config.get(name)):
            raise ConfigError(
                f"--{name} {printable_line(str(config[name]))}: the Record does not hold the credential that "
                f"was in place of {HIDDEN}: repeat the run with {command('run')}"
            )
    for path in _hashes(record):
        if (elsewhere := _started_elsewhere(record, path)) and not Path(path).expanduser().exists():
            raise ConfigError(f"{printable_line(no_file(path))}; {elsewhere}")


def _hashes(record: Record) -> dict[str, str]:
    """{path: SHA-256} of the files that the run read."""
    rows = [row for row in record.files if isinstance(row, dict)]
    return {str(row.get("path")): str(row.get("sha256")) for row in rows}


def _started_elsewhere(record: Record, path: str) -> str:
    """What to do about a relative path of a run that was started in another directory; else empty."""
    directory = str(record.environment.get("directory") or "")
    if not directory or not is_relative(path) or directory == str(Path.cwd()):
        return ""
    return f"the run was started in {printable_line(directory)}: repeat it there"
