"""Runs of the engine in a test's own process, from config to Record: no follower, no progress bar."""

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dpexp.config.errors import VerificationError
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.observations import run_facts
from dpexp.engine.passes import execute
from dpexp.engine.prepare import prepare
from dpexp.engine.prepared import Prepared
from dpexp.engine.progress import ProgressBar
from dpexp.engine.run_globals import run_globals
from dpexp.record.journal import Journal, NullJournal
from dpexp.record.record import Record


def recorded(
    home: Path, config: RunConfig, run_id: str = "run", *, group: ProcessGroup | None = None
) -> Record:
    """The Record of a run; on a rank of the group that is not the first, an empty one."""
    with run_globals(config):
        prepared = prepare(config, group=group)
        if not prepared.group.is_first:
            execute(prepared, NullJournal(), ProgressBar(hidden=True))
            return Record()
        with Journal(home / "runs", run_id) as journal:
            journal.set(run_facts(config, prepared))
            execute(prepared, journal, ProgressBar(hidden=True))
            journal.set(status="finished")
    return Record.load(journal.folder)


def along_mesh(group: ProcessGroup, config: RunConfig) -> ProcessGroup:
    """The ranks of a group along the mesh of a run, with the same reports of what ends them."""
    assert isinstance(config.options, RankOptions)
    along = ProcessGroup(config.options.mesh_of(group.size))
    along._faults = group._faults
    return along


def ended(prepared: Prepared) -> dict[str, Any]:
    """How a run ends, on each of its ranks: its error, with the type, and on the first the verification.

    ``fields`` are those of a VerificationError, and empty for any other end.
    """
    error, fields, group = "", dict[str, Any](), prepared.group
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), "run") if group.is_first else None
        with journal or nullcontext():
            try:
                execute(prepared, journal or NullJournal(), ProgressBar(hidden=True))
            except VerificationError as raised:
                error, fields = str(raised), vars(raised)
            except Exception as raised:  # of any kind: it is the answer
                error = f"{type(raised).__name__}: {raised}"
        verification = Record.load(journal.folder).verification if journal else {}
    return {"error": error, "fields": fields, "verification": verification}
