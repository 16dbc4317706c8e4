"""Reproduce: run a recorded run again, and check which of its results are the same.

::

    record --> config, threads as recorded --> run in a child process --> new record
       |                                                                      |
       +--> compare (``comparisons.py``): facts, bits of weights and outputs, losses, time
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from dpexp import live
from dpexp.config.errors import ConfigError
from dpexp.config.names import fitted
from dpexp.config.process import ROOT, home
from dpexp.config.run_config import RunConfig, known_options
from dpexp.record.record import Record, Row
from dpexp.study.reproduce.comparisons import incomparable
from dpexp.study.reproduce.named_files import changed_files, check_files, check_trust
from dpexp.study.reproduce.reproduction import Reproduction, compare_records
from dpexp.study.reproduce.worktree import worktree
from dpexp.study.sweep.child_run import run_in_child


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
