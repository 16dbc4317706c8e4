"""The command line that repeats a run, rebuilt from its config: only what differs from the defaults."""

import shlex
from typing import Any

from dpexp.config import STRATEGY_OPTIONS, ConfigError, RunConfig, options_with_role
from dpexp.config.options import flag_name, option_fields
from dpexp.record import Record


def command(record: Record) -> str:
    """``python scripts/run.py whole --virtual 8``; the recorded argv where the config is not ours to read."""
    try:
        config = RunConfig.from_dict(record.config)
        usual = RunConfig(config.strategy).to_dict()
    except ConfigError:
        return shlex.join(["python", *record.environment.get("argv", [])])
    words = ["python", "scripts/run.py", config.strategy]
    chosen = config.to_dict()
    left_out = options_with_role("delivery", "label")
    for cls in (RunConfig, STRATEGY_OPTIONS[config.strategy]):
        for field in option_fields(cls):
            if field.name not in left_out and chosen[field.name] != usual[field.name]:
                words += _option(field.name, field.metadata["flag"], chosen[field.name])
    return shlex.join(words)


def _option(name: str, flag: str | None, value: Any) -> list[str]:
    if isinstance(value, bool) and flag:
        yes, no = flag.split("/")
        return [yes if value else no]
    if isinstance(value, list):
        return [word for item in value for word in (flag_name(name), str(item))]
    return [] if value is None else [flag_name(name), str(value)]
