"""The types of a Record, key by key: what every reader may rely on.

A journal whose checksums are right can still be of another program, or of a hand that wrote it. One check
of the folded Record (``wrong_types``) spares every reader its own.

A set of types is a value; ``[kind]`` a list; ``{"*": kind}`` a dict with any keys; a dict of names a row,
in which ``?`` marks a key that may be absent, and other keys may hold anything.
"""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

NONE = type(None)
TEXT, INT, FLAG = frozenset({str}), frozenset({int}), frozenset({bool})
NUMBER = frozenset({int, float})
MAYBE_TEXT, MAYBE_INT, MAYBE_NUMBER, MAYBE_FLAG = (kind | {NONE} for kind in (TEXT, INT, NUMBER, FLAG))
STATUSES = ("running", "finished", "failed", "killed")
Kind = Any
"""A frozenset of types, a list of one Kind, or a dict of Kinds."""

_CONFIG: Kind = {
    **{f"{key}?": MAYBE_TEXT for key in ("strategy", "model", "data", "loss", "dtype", "backend", "resume")},
    **{f"{key}?": MAYBE_INT for key in ("batch_size", "steps", "epochs", "warmup", "threads", "virtual")},
    **{f"{key}?": MAYBE_FLAG for key in ("track", "eval", "check", "sparse", "pipeline")},
    "host?": [TEXT],
    "block?": [TEXT],
}
_ENVIRONMENT: Kind = {
    **{f"{key}?": MAYBE_TEXT for key in ("host", "cpu", "os", "python", "torch", "cuda", "mlflow")},
    **{f"{key}?": MAYBE_TEXT for key in ("user", "directory")},
    "threads?": MAYBE_INT,
    "argv?": [TEXT],
    "packages?": {"*": MAYBE_TEXT},
    "accelerators?": [{"name": TEXT, "memory?": MAYBE_NUMBER}],
    "git?": {"commit?": MAYBE_TEXT, "branch?": MAYBE_TEXT, "dirty?": MAYBE_FLAG},
}
_DEVICES: Kind = {
    "requested": [TEXT],
    "used": [TEXT],
    "output": TEXT,
    "ranks?": [{"rank": INT, "host": TEXT, "device": TEXT}],
}
_PARAMETER: Kind = {
    **dict.fromkeys(("module", "parameter", "kind", "dtype", "device"), TEXT),
    "shape": [INT],
    "bytes": INT,
    "replicas": [TEXT],
    "mapped?": FLAG,
    "frozen?": FLAG,
    "rank?": INT,
    "local_shape?": [INT],
    "placement?": TEXT,
    "unit?": TEXT,
}
_CALL: Kind = {
    "batch": INT,
    "scope": TEXT,
    "module": TEXT,
    "replica": MAYBE_INT,
    "device": TEXT,
    "inputs": [[INT]],
    "outputs": [[INT]],
    **{f"{key}?": {"*": INT} for key in ("bytes", "moved", "moved_back")},
    "looked_up?": INT,
    "asked?": [INT],
}
_SPAN: Kind = {
    "step": INT,
    "phase": TEXT,
    "replica": MAYBE_INT,
    "device": TEXT,
    "start_us": NUMBER,
    "end_us": NUMBER,
}
_MEMORY_USE: Kind = {
    "device": TEXT,
    "rank?": INT,
    **{f"{kind}?": INT for kind in ("parameters", "buffers", "gradients", "optimizer", "activations")},
    **{f"{kind}?": INT for kind in ("peak", "reserved")},
}
_SPREAD: Kind = dict.fromkeys(("median", "iqr", "min", "max", "n"), NUMBER)
_WORK: Kind = {
    "rows?": INT,
    "flops?": {"*": INT},
    "not_counted?": [TEXT],
    "tokens?": NUMBER,
    "peak?": {
        "device": TEXT,
        "dtype": TEXT,
        "threads": INT,
        "size": INT,
        "devices": INT,
        "flops_per_s": _SPREAD,
    },
    "memory?": {"bytes": INT, "row_bytes": INT, "bytes_per_s": _SPREAD},
    "link?": {"bytes": INT, "bytes_per_s": _SPREAD},
    "energy?": {"joules": {"*": NUMBER}, "steps": INT},
    "note?": TEXT,
}
_VERIFICATION: Kind = {
    "checked": FLAG,
    **{f"{kind}_error?": MAYBE_NUMBER for kind in ("output", "gradient", "loss", "buffer")},
    **{f"{key}?": MAYBE_NUMBER for key in ("parameter_error", "optimizer_error", "tolerance")},
    **{f"{key}?": MAYBE_TEXT for key in ("dtype", "note", "cause")},
    "passed?": MAYBE_FLAG,
    "steps?": MAYBE_INT,
}
_CHECKED: Kind = _VERIFICATION | {"tolerance": NUMBER, "passed": FLAG, "dtype": TEXT}
_WORST: Kind = {"kind": TEXT, "step": INT, "tensor": TEXT, "error": NUMBER}
_ROUNDING: Kind = {
    **{f"{key}?": MAYBE_NUMBER for key in ("output_error", "gradient_error")},
    **{f"single_{key}?": MAYBE_NUMBER for key in ("output_error", "gradient_error")},
    "passed": FLAG,
    "dtype?": MAYBE_TEXT,
    "autocast?": MAYBE_TEXT,
    "compile?": MAYBE_FLAG,
}
_SAMPLES: Kind = {"*": [MAYBE_NUMBER]}
_COLLECTIVE: Kind = {
    "rank": INT,
    "rows?": INT,
    "what": TEXT,
    "phase?": TEXT,
    "backward": FLAG,
    "to?": INT,
    "bytes": INT,
}
RECORD: Kind = {
    "schema": INT,
    **dict.fromkeys(("run_id", "name", "experiment", "strategy", "execution", "status"), TEXT),
    **dict.fromkeys(("started", "parent", "config_digest"), TEXT),
    "ended": MAYBE_TEXT,
    "config": _CONFIG,
    "environment": _ENVIRONMENT,
    "data": {"name?": MAYBE_TEXT, "samples?": MAYBE_INT, "description?": MAYBE_TEXT, "sha256?": MAYBE_TEXT},
    "devices": _DEVICES,
    "device_map": [_PARAMETER],
    "shapes": [_CALL],
    "steps": {"time_ms": [MAYBE_NUMBER], "loss": [MAYBE_NUMBER], "samples": [MAYBE_INT]},
    "phases": _SAMPLES,
    "metrics": _SAMPLES,
    "timeline": [_SPAN],
    "memory": {"*": NUMBER},
    "memory_use": [_MEMORY_USE],
    "work": _WORK,
    "verification": _VERIFICATION,
    "digest": {"*": MAYBE_TEXT},
    "summary": {"collectives?": [_COLLECTIVE]},
    "damage": [TEXT],
}
_ERROR: Kind = {"type?": TEXT, "message?": TEXT, "traceback?": MAYBE_TEXT}
SUMMARY: Kind = {
    **{key: RECORD[key] for key in ("run_id", "name", "experiment", "strategy", "execution", "status")},
    **{key: RECORD[key] for key in ("started", "ended")},
    "devices": [TEXT],
    "verified": MAYBE_FLAG,
    "damage?": INT,
    "steps?": INT,
    "missing_steps?": INT,
    "problem?": TEXT,
}


def wrong_types(record: dict[str, Any]) -> list[str]:
    """What a Record's dict holds that dpexp does not write, the first ten; empty for those of dpexp."""
    kinds = RECORD | {"verification": _verification(record["verification"])}
    return _wrong_values(record, kinds | _unless_none(record, "error", _ERROR))


def _verification(row: Any) -> Kind:
    """The types of a verification; a run that was not checked has few of its keys."""
    if not isinstance(row, dict):
        return _VERIFICATION
    kinds = _CHECKED if row.get("checked") is True else _VERIFICATION
    return kinds | _unless_none(row, "worst", _WORST) | _unless_none(row, "rounding", _ROUNDING)


def wrong_summary_types(summary: dict[str, Any]) -> list[str]:
    """As ``wrong_types``, of a RunSummary's dict."""
    return _wrong_values(summary, SUMMARY | _unless_none(summary, "step_ms", _SPREAD))


def _unless_none(row: dict[str, Any], key: str, kind: Kind) -> dict[str, Kind]:
    return {} if row.get(key) is None else {key: kind}


def _wrong_values(row: dict[str, Any], kind: Kind) -> list[str]:
    return list(islice(_wrong(row, kind, "", ""), 10)) or list(_wrong_texts(row))


def _wrong_texts(record: dict[str, Any]) -> Iterator[str]:
    if record["status"] not in STATUSES:
        yield f"status is {record['status']!r:.60}, not one of {', '.join(STATUSES)}"
    for key in ("started", "ended"):
        try:
            datetime.fromisoformat(record[key] or "1970-01-01")
        except ValueError:
            yield f"{key} is {record[key]!r:.60}, not a time"


def _wrong(value: Any, kind: Kind, path: str, key: str) -> Iterator[str]:
    """The values that differ from the kind, as ``path is …``."""
    path = f"{path}.{key}" if path and key else path or key
    if isinstance(kind, frozenset):
        if type(value) not in kind:
            yield f"{path} is {value!r:.60}, not {_name(kind)}"
    elif type(value) is not type(kind):
        yield f"{path} is {value!r:.60}, not {'an object' if isinstance(kind, dict) else 'a list'}"
    elif isinstance(kind, list):
        if not (isinstance(kind[0], frozenset) and set(map(type, value)) <= kind[0]):
            for index, item in enumerate(value):
                yield from _wrong(item, kind[0], f"{path}[{index}]", "")
    else:
        yield from _wrong_row(value, kind, path)


def _wrong_row(row: dict[str, Any], kinds: dict[str, Kind], path: str) -> Iterator[str]:
    for name, kind in kinds.items():
        key = name.removesuffix("?")
        if name == "*":
            for each, value in row.items():
                yield from _wrong(value, kind, path, each)
        elif key in row:
            if not (isinstance(kind, frozenset) and type(row[key]) in kind):  # most are, of many rows
                yield from _wrong(row[key], kind, path, key)
        elif key == name:
            yield f"{path or 'the Record'} has no {key}"


def _name(kind: frozenset[type]) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", NONE: "null"}
    return " or ".join(names[each] for each in names if each in kind and not (each is int and float in kind))
