"""The bugs of all kinds: a bug is a function or a class of a file here, and ``bug`` says over which layouts it runs."""

import inspect
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = (
    "run_dtype",
    "late",
    "for_all",
    "hidden",
    "training_mode",
    "rare_paths",
    "races",
    "the_model",
    "unseen",
)
"""The files, each with the bugs of one kind."""

RIGHT = ("right_models", "right_layouts")
"""The files with models and layouts that are right."""

SHORT = {
    "batch_size": 10,
    "data": "random:samples=34",
    "warmup": 1,
    "steps": 12,
    "phase_steps": 0,
    "threads": 1,
}
"""Every run: an epoch is batches of 10, 10, 10 and 4 rows, and two of them share each batch."""

CUSTOM = {
    "host": {},
    "replicas": {"virtual": 2},
    "ranks": {"mesh": "dp=2"},
    "shards": {"mesh": "dp=2"},
    "by_hand": {"mesh": "dp=2"},
    "by_replicas": {"virtual": 2},
}
"""Layouts of ``over.py``, of a model that a function has changed."""

STRATEGIES = {
    "single": {},
    "whole": {"virtual": 2},
    "functional": {"virtual": 2},
    "block": {"virtual": 2, "block": ["second"]},
    "hybrid": {"virtual": 2, "host": ["first"]},
    "place": {"virtual": 2, "place": ["second=cpu:1"]},
    "ddp": {"devices": "cpu"},
    "fsdp": {"devices": "cpu"},
}
"""dpexp's own layouts, of a model that is itself wrong in them."""

RANKS = ("ranks", "shards", "by_hand", "ddp", "fsdp")
"""Those that have two processes."""


@dataclass(frozen=True)
class Case:
    """One run: a bug (``kind.name``) over a layout, with all options.

    ``what`` is wrong, and would be ``seen_by`` something else than a run. A message in which the pattern ``refusal``
    is found is right too.
    """

    kind: str
    name: str
    over: str
    what: str
    seen_by: str = ""
    refusal: str = ""
    options: dict = field(default_factory=dict)

    @property
    def ranks(self):
        """The number of processes."""
        return int(self.options.get("mesh", "dp=2")[-1]) if self.over in RANKS else 1

    def __str__(self):
        return f"{self.kind}.{self.name}/{self.over}"


_FOUND = []


def right(*over, model="Net", refusal="", **options):
    """Run the model class, or the function, that follows over these layouts: it is right in them."""
    return bug(*over, model=model, refusal=refusal, **options)


def bug(*over, model="Net", refusal="", name="", **options):
    """Run the function ``(model)``, or the model class, that follows over these layouts, with these options."""

    def register(planted):
        what, _, seen_by = inspect.getdoc(planted).partition("\n\n")
        named = name or planted.__name__
        for each in over:
            run = _options(each, planted, named, model) | options
            _FOUND.append(Case(planted.__module__, named, each, what, seen_by, refusal, run))
        return planted

    return register


def _options(over, planted, name, model):
    kind = planted.__module__
    if over in CUSTOM and isinstance(planted, type):
        kind, name, model = "right_layouts", "nothing", f"{kind}.{name}"
    if over in CUSTOM:
        layout = f"{HERE / 'over.py'}:{over}:bug={kind}.{name}"
        return SHORT | {"strategy": "custom", "layout": layout, "model": _model(model)} | CUSTOM[over]
    return SHORT | {"strategy": over, "model": f"{HERE / kind}.py:{name}"} | STRATEGIES[over]


def _model(name):
    """A class of ``nets.py``, or of another file, ``FILE.CLASS``."""
    file, _, name = name.rpartition(".")
    return f"{HERE / (file or 'nets')}.py:{name}"


def cases():
    """All cases, in the order of kinds and files."""
    for kind in (*KINDS, *RIGHT):
        import_module(kind)
    order = {kind: number for number, kind in enumerate((*KINDS, *RIGHT))}
    return sorted(_FOUND, key=lambda case: order[case.kind])
