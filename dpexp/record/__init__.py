"""Record: the facts of one run, and the append-only journal on disk from which it is folded.

::

    runs/<run_id>/journal.jsonl    append-only, synced at every flush: the truth          journal.py
                  record.json      its fold, written when the run ends                    fold.py
                  head.json        the summary of the run for lists of runs               summary.py

Start reading in record.py, which defines the Record; reader.py reads a journal's lines, index.py finds runs
by name. Every other room may import this one; it imports nothing of dpexp and neither torch nor mlflow.
"""

from dpexp.record.durable import (
    check_home,
    check_writable,
    make_folder,
    private_files,
    private_umask,
    share,
    write_atomically,
)
from dpexp.record.fold import finish, fold, load, load_closed
from dpexp.record.import_journals import import_journal, journals
from dpexp.record.index import UnknownRunError, find, folders, summaries
from dpexp.record.journal import COMPARISON, JOURNAL, RECORD, SWEEP_STRATEGY, Journal, NullJournal, is_open
from dpexp.record.origin import is_ours, sign
from dpexp.record.packing import pack
from dpexp.record.reader import JournalReader
from dpexp.record.record import SCHEMA, JournalError, Record, Row, new_run_id, now, present
from dpexp.record.redact import Verbatim, redact
from dpexp.record.step_times import (
    Steps,
    efficiency,
    rate,
    speed_up,
    spread,
    steps_by_rows,
    usual_steps,
    usual_times,
)
from dpexp.record.summary import RunSummary
from dpexp.record.work_figures import CATEGORIES

__all__ = [
    "CATEGORIES",
    "COMPARISON",
    "JOURNAL",
    "RECORD",
    "SCHEMA",
    "SWEEP_STRATEGY",
    "Journal",
    "JournalError",
    "JournalReader",
    "NullJournal",
    "Record",
    "Row",
    "RunSummary",
    "Steps",
    "UnknownRunError",
    "Verbatim",
    "check_home",
    "check_writable",
    "efficiency",
    "find",
    "finish",
    "fold",
    "folders",
    "import_journal",
    "is_open",
    "is_ours",
    "journals",
    "load",
    "load_closed",
    "make_folder",
    "new_run_id",
    "now",
    "pack",
    "present",
    "private_files",
    "private_umask",
    "rate",
    "redact",
    "share",
    "sign",
    "speed_up",
    "spread",
    "steps_by_rows",
    "summaries",
    "usual_steps",
    "usual_times",
    "write_atomically",
]
