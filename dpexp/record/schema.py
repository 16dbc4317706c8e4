"""The check of a Record's types, which every reader may then rely on. ``rows.py`` has the types.

A journal whose checksums are right can still be of another program, or of a hand that wrote it. One check
of the folded Record (``wrong_types``) spares every reader its own.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import islice
from types import MappingProxyType, NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints, is_typeddict

from dpexp.record.facts import Checked
from dpexp.record.rows import RecordRow

STATUSES = ("running", "finished", "failed", "killed")
NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}


class Kind(NamedTuple):
    """What a type hint allows: values of the ``plain`` types, or a list, a dict with any keys, or a row."""

    plain: frozenset[type]
    container: Any = None
    item: Any = None
    fields: Mapping[str, Any] = MappingProxyType({})
    required: frozenset[str] = frozenset()
    may_be_none: bool = False


def wrong_types(record: dict[str, Any]) -> list[str]:
    """What a Record's dict holds that dpexp does not write, the first ten; empty for those of dpexp."""
    return list(islice(_wrong_values(record), 10)) or list(_wrong_texts(record))


def _wrong_values(record: dict[str, Any]) -> Iterator[str]:
    yield from _wrong(record, kind_of(RecordRow), "")
    verification = record["verification"]
    if isinstance(verification, dict) and verification.get("checked") is True:
        yield from _wrong(verification, kind_of(Checked), "verification")


def _wrong_texts(record: dict[str, Any]) -> Iterator[str]:
    if record["status"] not in STATUSES:
        yield f"status is {record['status']!r:.60}, not one of {', '.join(STATUSES)}"
    for key in ("started", "ended"):
        try:
            datetime.fromisoformat(record[key] or "1970-01-01")
        except ValueError:
            yield f"{key} is {record[key]!r:.60}, not a time"


def _wrong(value: Any, kind: Kind, path: str) -> Iterator[str]:
    """The values that are not of the kind, as ``path is …``."""
    if kind.plain:
        if type(value) not in kind.plain:
            yield f"{path} is {value!r:.60}, not {_name(kind.plain)}"
    elif value is None and kind.may_be_none:
        return
    elif type(value) is not kind.container:
        yield f"{path} is {value!r:.60}, not {'a list' if kind.container is list else 'an object'}"
    elif kind.fields:
        yield from _wrong_row(value, kind, path)
    else:
        yield from _wrong_items(value, kind.item, path)


def _wrong_items(found: list[Any] | dict[str, Any], kind: Kind, path: str) -> Iterator[str]:
    """The items of a list, or the values of a dict with any keys."""
    values = found if isinstance(found, list) else found.values()
    if set(map(type, values)) <= kind.plain:
        return
    named = found.items() if isinstance(found, dict) else enumerate(found)
    for key, value in named:
        yield from _wrong(value, kind, f"{path}[{key}]" if isinstance(found, list) else f"{path}.{key}")


def _wrong_row(row: dict[str, Any], kind: Kind, path: str) -> Iterator[str]:
    for key, field in kind.fields.items():
        if key in row:
            if type(row[key]) not in field.plain:  # most are, of many rows
                yield from _wrong(row[key], field, f"{path}.{key}" if path else key)
        elif key in kind.required:
            yield f"{path or 'the Record'} has no {key}"


@cache
def kind_of(hint: Any) -> Kind:
    """The kind of a type hint: ``str | None``, ``list[int]``, ``dict[str, float]``, a TypedDict or None."""
    options = frozenset(get_args(hint) if isinstance(hint, UnionType) else (hint,))
    if options <= NAMES.keys():
        return Kind(options | {int} if float in options else options)
    (hint,) = options - {NoneType}
    if is_typeddict(hint):
        fields = {key: kind_of(each) for key, each in get_type_hints(hint).items()}
        return Kind(frozenset(), dict, None, fields, hint.__required_keys__, NoneType in options)
    return Kind(frozenset(), get_origin(hint), kind_of(get_args(hint)[-1]))


def _name(plain: frozenset[type]) -> str:
    return " or ".join(
        NAMES[each] for each in NAMES if each in plain and not (each is int and float in plain)
    )
