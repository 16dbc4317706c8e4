"""The config of a run as its Record has it: free texts without credentials, everything else as it is."""

from typing import Any

from dpexp.config.options import flag_name, option_fields, spec_options, to_json
from dpexp.config.run_config import RunConfig
from dpexp.config.spec import parse
from dpexp.engine.facts.references import REGISTRIES
from dpexp.record.record import Row
from dpexp.record.redact import Verbatim, redact


def recorded_config(config: RunConfig) -> Row:
    """``config.to_dict()`` without credentials, which only labels, user code and paths may contain."""
    recorded: Row = {"strategy": Verbatim(config.strategy)}
    for part in (config, config.options):
        specs = spec_options(type(part))
        for field in option_fields(type(part)):
            value = to_json(getattr(part, field.name))
            if field.name in specs:
                value = _each(value, lambda text, name=field.name: _without_secrets(name, text))
            elif field.metadata["role"] == "label" and value != field.default:
                value = redact(value)
            recorded[field.name] = _each(value, Verbatim)
    return recorded


def _each(value: Any, change: Any) -> Any:
    """The value with every text in it changed."""
    if isinstance(value, list):
        return [_each(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _without_secrets(option: str, text: str) -> str:
    """A spec redacted, except for a registered name and its options, which are numbers."""
    registry = REGISTRIES.get(option, {})
    name, colon, rest = text.partition(":")
    if name.strip() not in registry:
        return redact(text)
    path = parse(text, registry, flag_name(option), option).argument or ""
    return name + colon + redact(path) + rest[len(path) :]
