"""GroupKey: what must be equal for two runs to be ranked against each other, or to be repeats."""

import json

from dpexp.config.run_config import known_options, options_with_role
from dpexp.record.record import Record
from dpexp.report.analysis.layout import accelerator_names

FILING = options_with_role("delivery", "label") | {"seed"}
"""Config keys that don't make another config: runs that differ in them only are repeats."""
GroupKey = tuple[str, tuple[str, ...], tuple[str, ...]]
"""(execution, machine, work): what must be equal for two runs to be ranked against each other."""


class GroupKeys:
    """The keys of Records. Of those that share config, files and environment they are made once."""

    def __init__(self) -> None:
        self._keys: dict[tuple[int, int, int, str], tuple[Record, GroupKey, str]] = {}

    def of(self, record: Record) -> tuple[GroupKey, str]:
        """The run's group key, and its config and files as text, without the options that only file it."""
        shared = (id(record.config), id(record.files), id(record.environment), record.execution)
        if shared not in self._keys:  # the Record stays referenced, so that no other object gets these ids
            env, config = record.environment, record.config
            machine = (str(env.get("host")), str(env.get("cpu")), *accelerator_names(record))
            work = tuple(str(config.get(key)) for key in ("model", "data", "batch_size", "dtype", "eval"))
            work += (_contents(record),)
            kept = {key: value for key, value in known_options(config).items() if key not in FILING}
            group_key = (record.execution, machine, work)
            self._keys[shared] = (record, group_key, json.dumps([kept, record.files], sort_keys=True))
        return self._keys[shared][1:]


def _contents(record: Record) -> str:
    """The digests of the files and objects that the model and the data come from; empty without any."""
    texts = [str(record.config.get(key, "")) for key in ("model", "data")]
    texts += [text.replace(".", "/") for text in texts]  # a module, of which the file is recorded
    found = []
    for row in record.files:
        path = str(row.get("path"))
        stem = path.removesuffix("/__init__.py").removesuffix(".py")
        if any(stem in text for text in texts):
            found.append(f"{path} {str(row.get('sha256'))[:8]}")
    return ", ".join(found)
