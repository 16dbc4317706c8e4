"""Inventory: the models that have a name, with their options."""

import inspect

from dpexp.config.factories import find
from dpexp.models.registry import MODELS
from dpexp.record.record import Row


def registry() -> list[Row]:
    """A row for each model that has a name: ``model``, ``help``, and its options with default and help."""
    rows = []
    for name in MODELS:
        made = find("--model", name, MODELS).load()
        decided = {option: f"From the data: {of.replace('_', ' ')}." for option, of in made.from_data}
        options = [
            {"option": option, "default": parameter.default, "help": decided.get(option, "")}
            for key, parameter in inspect.signature(made).parameters.items()
            for option in [key.rstrip("_")]
        ]
        help = str(inspect.getdoc(made)).partition("\n")[0].replace("``", "")
        rows.append({"model": name, "help": help, "options": options})
    return rows
