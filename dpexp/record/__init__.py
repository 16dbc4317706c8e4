"""Record: the facts of one run, and the append-only journal on disk that they are folded from.

::

    runs/<run_id>/journal.jsonl    append-only, synced at every flush: the truth          journal
                  record.json      its fold, written when the run is over                 folding
                  head.json        the few facts that a list of runs shows                head

``facts`` is the Record itself; ``catalog`` finds runs by name. Needs neither torch nor mlflow.
"""

from dpexp.record.adopt import adopt, journals
from dpexp.record.catalog import UnknownRunError, find, folders, heads
from dpexp.record.durable import write_atomically
from dpexp.record.facts import SCHEMA, JournalError, Record, Row, new_run_id, now, spread
from dpexp.record.folding import finish, fold, load
from dpexp.record.head import Head
from dpexp.record.journal import JOURNAL, RECORD, Journal, Tail, entries, is_open
from dpexp.record.redact import redact

__all__ = [
    "JOURNAL",
    "RECORD",
    "SCHEMA",
    "Head",
    "Journal",
    "JournalError",
    "Record",
    "Row",
    "Tail",
    "UnknownRunError",
    "adopt",
    "entries",
    "find",
    "finish",
    "fold",
    "folders",
    "heads",
    "is_open",
    "journals",
    "load",
    "new_run_id",
    "now",
    "redact",
    "spread",
    "write_atomically",
]
