"""Record: the facts of one run, and the append-only journal on disk that they are folded from.

::

    runs/<run_id>/journal.jsonl    append-only, synced at every flush: the truth          journal
                  record.json      its fold, written when the run is over                 folding
                  head.json        the few facts that a list of runs shows                head

``facts`` is the Record itself; ``catalog`` finds runs by name. Needs neither torch nor mlflow.
"""

from dpexp.record.durable import write_atomically
from dpexp.record.fold import finish, fold, load
from dpexp.record.import_journals import import_journal, journals
from dpexp.record.index import UnknownRunError, find, folders, summaries
from dpexp.record.journal import JOURNAL, RECORD, Journal, NullJournal, Tail, entries, is_open
from dpexp.record.record import SCHEMA, JournalError, Record, Row, new_run_id, now, spread
from dpexp.record.redact import redact
from dpexp.record.summary import RunSummary

__all__ = [
    "JOURNAL",
    "RECORD",
    "SCHEMA",
    "Journal",
    "JournalError",
    "NullJournal",
    "Record",
    "Row",
    "RunSummary",
    "Tail",
    "UnknownRunError",
    "entries",
    "find",
    "finish",
    "fold",
    "folders",
    "import_journal",
    "is_open",
    "journals",
    "load",
    "new_run_id",
    "now",
    "redact",
    "spread",
    "summaries",
    "write_atomically",
]
