"""Reproduce: run a recorded run again, and check which of its results are the same.

::

    record --> config, threads as recorded --> run in a child process --> new record
       |                                                                      |
       +--> compare (``reproduction.py``): facts, bits of weights and outputs, losses
"""

import warnings
from collections.abc import Callable
from pathlib import Path

from dpexp import live
from dpexp.config.errors import ConfigError
from dpexp.config.names import fitted
from dpexp.config.printable import printable_line
from dpexp.config.process import home
from dpexp.config.run_config import RunConfig, known_options
from dpexp.engine.facts import file_hashes
from dpexp.engine.references import references
from dpexp.record.record import Record, Row
from dpexp.record.runs import IMPORTED
from dpexp.report.commands import command_of
from dpexp.study.child_run import run_in_child
from dpexp.study.reproduction import Reproduction, compare_records


def config_of(record: Record, *, track: bool = True) -> Row:
    """The config that a Record was made with, its number of threads spelled out, filed under ``reproduce``.

    It is tracked if the run was, and ``track`` allows it.
    Raises ConfigError for a Record of something else than a run of dpexp.
    """
    if not record.config.get("strategy"):
        raise ConfigError(f"{record.name or record.run_id} cannot be repeated: its Record has no config")
    if record.is_watched:
        raise ConfigError(
            f"run {record.run_id} is a training loop that was watched, which dpexp cannot run: "
            f"run its program again, {command_of(record)}"
        )
    config = {key: value for key, value in record.config.items() if value is not None}
    if record.environment.get("threads"):
        config["threads"] = record.environment["threads"]
    config["track"] = track and config.get("track", True)
    return config | {"experiment": "reproduce", "run_name": fitted(f"again {record.name}", "again")}


def reproduce(
    record: Record,
    *,
    trust: bool = False,
    warn: Callable[[str], None] = warnings.warn,
    track: bool = True,
) -> Reproduction:
    """Run it again and compare.

    What it runs is delivered to MLflow if the recorded run was to be, and ``track`` allows it.

    ``trust`` also runs code and reads files that the Record names, as one's own may; ``warn`` is called,
    before anything runs, for each file that has changed. Raises ConfigError if the Record is not trusted, and
    if its config or data is not available here.
    """
    config = known_options(config_of(record, track=track))
    if used := live.live_options(config):
        raise live.gone(f"--{used[0]} of run {record.run_id}, {config[used[0]]},")
    parsed = RunConfig.from_dict(config, where=f"record {record.run_id}")
    if not trust:
        check_trust(record, parsed)
    for change in changed_files(record, config):
        warn(change)
    child = run_in_child(config, {"DPEXP_HOME": str(home())})
    if child.record is None:
        raise ConfigError(f"the run could not be repeated: {child.error or 'it printed no Record'}")
    return compare_records(record, child.record)


def is_foreign(folder: Path) -> bool:
    """Whether a run came from another machine; a folder that is not one of this home's runs did as well."""
    return (folder / IMPORTED).exists() or folder.resolve().parent != home() / "runs"


def check_trust(record: Record, config: RunConfig) -> None:
    """Raises ConfigError if running the config would use code or files of someone else; shows which."""
    named = [str(reference) for reference in references(config) if reference.is_outside]
    if named:
        lines = "".join(f"\n  {printable_line(line)}" for line in named)
        raise ConfigError(
            f"record {printable_line(record.run_id)} was not made in {home()}, and it names what dpexp does "
            f"not have:{lines}\nNothing was run. Look at it; --trust runs it"
        )


def changed_files(record: Record, config: Row) -> list[str]:
    """The files that the config names and that are different from those of the run, in words."""
    recorded = {row["path"]: row["sha256"] for row in record.files}
    present = file_hashes(references(RunConfig.from_dict(known_options(config))))
    return [
        printable_line(
            f"{path} has changed since the run (SHA-256 {recorded[path][:12]}… then, {now[:12]}… now): "
            "restore it, or expect other results"
        )
        for path, now in ((row["path"], row["sha256"]) for row in present)
        if recorded.get(path, now) != now
    ]
