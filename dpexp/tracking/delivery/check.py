"""Check: a run against its ledger, and against what the MLflow store really holds, by counts and values.

A server may have answered that it stored what it lost, a database may be deleted, a value changed by hand.
What ``expected_metrics`` and its kind say a delivery writes must be there; what users add in MLflow may be.
What the dpexp that delivered it may not have known (``content.may_lack``) may be absent, but not differ.

::

    problems     kind ledger   the ledger is damaged, or of another state of the journal
                      missing  not delivered, or deleted in the store
                      values   params or metrics differ, which MLflow does not replace: a new run gets them
                      facts    tags, artifacts or traces differ: the same run gets them again
                      system   ``system.jsonl`` lacks samples that MLflow has: nothing can write them again
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from dpexp.config.ranges import plural
from dpexp.record.journal.durable import NotAFileError, read_file
from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import JOURNAL, RECORD, is_open
from dpexp.record.journal.seal import checksum
from dpexp.record.profiler_trace import PROFILER_TRACE, trace_of, wrong_trace
from dpexp.record.record import JournalError, Record
from dpexp.record.runs.check import Problem
from dpexp.record.runs.import_journals import SYSTEM
from dpexp.record.view import RecordView
from dpexp.tracking.content import additions, content, earlier, tables, traces
from dpexp.tracking.content.samples import MetricSamples, is_system
from dpexp.tracking.delivery import ledger, permission
from dpexp.tracking.delivery.ledger import LedgerEntry
from dpexp.tracking.delivery.mlflow_run import MlflowRun
from dpexp.tracking.store.store import Store

AGAIN = "deliver it again"
NEW_RUN = "deliver it into a new MLflow run"
FORGET = "remove the file: the run is not tracked"
_SHOWN = 3  # differing names that a problem lists


def ledger_problems(folder: Path) -> list[Problem]:
    """What is wrong with the ledger of a run that has ended. Asks no store."""
    journal = folder / JOURNAL
    try:
        now = checksum(journal)
    except OSError:  # which `problems` of the files reports
        return []
    try:
        entries = ledger.read_undamaged(folder)
    except FileNotFoundError:
        return []
    except NotAFileError as error:
        what = f"{ledger.LEDGER}: {error.strerror}"
        return [Problem(folder.name, "ledger", what, _if_damaged(folder))]
    except OSError as error:
        return [Problem(folder.name, "ledger", f"{ledger.LEDGER}: {error.strerror}")]
    except ValueError as error:
        return [Problem(folder.name, "ledger", f"{ledger.LEDGER}: {error}", _if_damaged(folder))]
    if is_open(journal):
        return []
    found = []
    for store, entry in entries.items():
        if has_more(folder, entry):
            found.append(
                Problem(folder.name, "ledger", f"the journal has lost what was delivered to {store}")
            )
        elif entry.complete and entry.journal_crc not in ("", now["crc"]) and _is_tracked(folder):
            what = f"the journal has changed since it was delivered to {store}"
            found.append(Problem(folder.name, "ledger", what, AGAIN))
    return found


def _if_damaged(folder: Path) -> str:
    """How a damaged ledger is repaired: the store of a tracked run knows what it has."""
    return AGAIN if _is_tracked(folder) else FORGET


def _is_tracked(folder: Path) -> bool:
    try:
        return permission.is_tracked(folder, load(folder))
    except JournalError:
        return True


def has_more(folder: Path, entry: LedgerEntry) -> bool:
    """Whether a store was delivered what the journal has lost since: it keeps that, and is sent nothing.

    A journal that a resumed run has continued begins with the delivered one, or is undamaged.
    """
    if not entry.complete:
        return False
    begin = read_file(folder / JOURNAL)[: entry.journal_bytes]
    crc = f"{zlib.crc32(begin):08x}"
    if len(begin) == entry.journal_bytes and entry.journal_crc in ("", crc):
        return False
    try:
        return bool(load(folder).damage)
    except JournalError:
        return True


def keeps_more(store: Store, folder: Path) -> bool:
    """Whether the open store ``has_more`` of a run, and has it still."""
    entry = ledger.read_ledger(folder).get(store.name)
    return entry is not None and has_more(folder, entry) and active(store, folder, entry) is not None


def store_problems(store: Store, folder: Path) -> list[Problem]:
    """How the store differs from what a delivery of this run writes. May raise what the store raises.

    Empty for a run that is running, is being delivered, is not tracked, or cannot be read.
    """
    try:
        if is_open(folder / JOURNAL):
            return []
        record = load(folder)
    except (OSError, JournalError):
        return []
    if keeps_more(store, folder):
        return []  # which `ledger_problems` reports
    entry = ledger.read_ledger(folder).get(store.name)
    if entry is None or not ledger.is_complete(folder, store.name):
        if ledger.is_being_delivered(folder):
            return []
        what = f"not completely delivered to {store.name}"
        is_wanted = permission.may_deliver(folder, record, store.name)
        return [Problem(folder.name, "missing", what, AGAIN)] if is_wanted else []
    found = active(store, folder, entry)
    if found is None:
        return [Problem(folder.name, "missing", f"MLflow run {entry.mlflow_run_id} is gone", AGAIN)]
    run = MlflowRun(store, entry.experiment_id, entry.mlflow_run_id)
    differing, lost = _system(folder, run, found)
    texts = {
        "values": [_params(record, found), *_metrics(record, run, found), *differing],
        "facts": [_tags(record, folder, store, found), _artifacts(record, folder, run), _traces(record, run)],
        "system": [lost],
    }
    repairs = {"values": NEW_RUN, "facts": AGAIN, "system": ""}
    return [Problem(folder.name, kind, text, repairs[kind]) for kind in texts for text in texts[kind] if text]


def delete_mlflow_run(store: Store, folder: Path) -> None:
    """Delete the MLflow run of this run, if it is there: the next delivery makes one that replaces it."""
    entry = ledger.read_ledger(folder).get(store.name)
    if entry is not None and active(store, folder, entry) is not None:
        additions.replace(MlflowRun(store, entry.experiment_id, entry.mlflow_run_id))
        ledger.write_entry(folder, store.name, replace(entry, complete=False))


def exists(store: Store) -> bool:
    """False where the store's file was deleted: to open it would make a new one."""
    return store.sqlite_file is None or store.sqlite_file.path.exists()


def active(store: Store, folder: Path, entry: LedgerEntry) -> Any:
    """The MLflow run as the client returns it; None if it or the store was deleted, or it is another's."""
    return store.active_run(entry.mlflow_run_id, folder.name) if exists(store) else None


def content_then(found: Any) -> ModuleType:
    """What an MLflow run must have: ``content``, or what there was when it was delivered."""
    return earlier if earlier.has_version_1(found.data.tags) else content


def _params(record: Record, found: Any) -> str:
    expected, _ = content.fit(content.params(record), content.MAX_PARAM)
    return _differing("params", expected, found.data.params)


def _tags(record: Record, folder: Path, store: Store, found: Any) -> str:
    expected, _ = content.fit(content.tags(record), content.MAX_TAG)
    expected |= ledger.parent_tag(folder, record, store.name)
    if earlier.has_version_1(found.data.tags):
        del expected[content.VERSION_TAG]
    status = {"status": record.status.upper()}
    return _differing("tags", expected | status, found.data.tags | {"status": found.info.status})


def _metrics(record: Record, run: MlflowRun, found: Any) -> Iterator[str]:
    """One text for each metric that differs; a step that the journal has lost may have any value."""
    then = content_then(found)
    expected, lost = then.expected_metrics(record), content.lost_steps(record)
    own = {key for key in found.data.metrics if then.is_own_metric(record, key)}
    expected = {key: points for key, points in expected.items() if key in own or not then.may_lack(key)}
    for key in sorted(key for key in expected.keys() | own if not is_system(key)):
        history = run.store.client.get_metric_history(run.run_id, key)
        points = [point for point in history if point.step not in lost.get(key, ())]
        if then.is_single(key):  # the last one counts, of a sweep that was resumed
            points = sorted(points, key=lambda point: int(point.timestamp))[-1:]
        yield _metric(key, expected.get(key, {}), points)


def _system(folder: Path, run: MlflowRun, found: Any) -> tuple[list[str], str]:
    """The system metrics that differ from ``system.jsonl``, and what the file lacks of them."""
    samples = MetricSamples(folder)
    samples.read()
    held, texts, lost = samples.system(), [], set()
    for key in sorted(held.keys() | set(filter(is_system, found.data.metrics))):
        history = run.store.client.get_metric_history(run.run_id, key)
        expected = held.get(key, {})
        lost |= {(int(point.step), int(point.timestamp)) for point in history} - expected.keys()
        points = [point for point in history if (int(point.step), int(point.timestamp)) in expected]
        texts.append(_metric(key, {step: value for (step, _), value in expected.items()}, points))
    state = "is damaged, and" if (folder / SYSTEM).exists() else "is missing, and"
    return texts, f"{SYSTEM} {state} lacks {plural(len(lost), 'sample')} that MLflow has" if lost else ""


def _metric(key: str, expected: Mapping[int, float], points: list[Any]) -> str:
    if len(points) != len(expected):
        return f"metric {key}: {plural(len(points), 'point')} instead of {len(expected)}"
    stored = {int(point.step): point.value for point in points}
    for step, value in expected.items():
        if step not in stored:
            return f"metric {key}: no point at step {step}"
        if not content.is_same_value(stored[step], value):
            return f"metric {key}: {stored[step]!r} at step {step} instead of {value!r}"
    return ""


def _artifacts(record: Record, folder: Path, run: MlflowRun) -> str:
    stored = {file.path: file.file_size for file in run.store.client.list_artifacts(run.run_id)}
    expected = {RECORD, *tables.rows_by_table(record)}
    trace = None if wrong_trace(folder, record) else trace_of(record)  # which `record_problems` reports
    missing = sorted((expected | ({PROFILER_TRACE} if trace else set())) - stored.keys())
    if missing:
        return f"artifacts missing: {', '.join(missing)}"
    size = stored.get(PROFILER_TRACE)
    if trace is None or size is None or size == trace["bytes"]:
        return ""
    return f"artifact {PROFILER_TRACE}: {plural(size, 'byte')} instead of {trace['bytes']}"


def _traces(record: Record, run: MlflowRun) -> str:
    expected = traces.span_counts(RecordView(record))
    stored = len(run.stored_traces(expected))
    return "" if stored == len(expected) else f"{plural(stored, 'trace')} instead of {len(expected)}"


def _differing(what: str, expected: Mapping[str, str], stored: Mapping[str, str]) -> str:
    names = [name for name, value in expected.items() if stored.get(name) != value]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} differ: {', '.join(names[:_SHOWN])}{more}" if names else ""
