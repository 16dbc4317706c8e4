"""Named files: what a Record's config names outside of dpexp, and whether it is as it was at the run.

``reproduce`` runs what a Record's config names. Of a run that was imported, and of a Record's file, it runs
dpexp's own models, data and losses, and other code only if the user says so.
"""

from collections.abc import Iterator
from pathlib import Path

from dpexp.config.errors import ConfigError, no_file
from dpexp.config.printable import printable_line
from dpexp.config.process import command, home
from dpexp.config.run_config import RunConfig, known_options
from dpexp.engine.facts import file_hashes, is_relative
from dpexp.engine.references import references
from dpexp.record.record import Record, Row
from dpexp.record.redact import HIDDEN
from dpexp.record.runs import IMPORTED
from dpexp.study.reproduce.worktree import commit_of, is_in_history


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
