"""Inventory: what a model is made of, so that one knows what to name in --block, --host and --place.

``registry`` lists the models that have names; ``inventory`` runs one batch through a model on the host
and tells of every submodule its type, its size and the shapes that it was called with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from dpexp.config import RunConfig
from dpexp.models import MODELS
from dpexp.record import Row


@dataclass(frozen=True)
class Inventory:
    """One model. ``modules`` has a row for each submodule in the order of the model's definition.

    A row: module, type, parameters (how many numbers), bytes (of parameters and buffers), both with
    those of its children; calls in one batch, and inputs and outputs, lists of shapes, of the first. A
    module without calls cannot be wrapped.
    """

    model: str
    data: str
    rows: int
    parameters: int
    bytes: int
    modules: list[Row]


def registry() -> list[Row]:
    """A row for each registered model: name, help, and its options with type, default and help."""
    return [
        {
            "model": name,
            "help": entry.help,
            "options": [
                {"option": each.name, "type": each.type.__name__, "default": each.default, "help": each.help}
                for each in entry.options
            ],
        }
        for name, entry in MODELS.items()
    ]


def inventory(model: str, data: str) -> Inventory:
    """The inventory of what ``--model`` and ``--data`` name. Raises ConfigError as a run would."""
    from dpexp.engine import loop
    from dpexp.engine.observe import device_map, observe
    from dpexp.engine.verify import naming_the_module
    from dpexp.timing import Timer

    # Forward only and unverified: a model that cannot be trained or copied can be looked at as well.
    config = RunConfig("single", model=model, data=data, devices="cpu", eval=True, check=False)
    prepared = loop.prepare(config, try_one_batch=False)  # which would ask for a loss as well
    placed = prepared.strategy.place(prepared.model, (), Timer())
    batch = next(prepared.batches(0))
    with naming_the_module(prepared.model):
        calls = observe(placed, [batch.inputs])
    held = device_map(placed)  # after the first batch, which lazy parameters wait for
    names = [(name, type(part).__name__) for name, part in prepared.model.named_modules()]
    modules = [
        {"module": name, "type": kind, **_size(name, held), **_calls(name, calls)} for name, kind in names
    ]
    return Inventory(
        model=config.model,
        data=config.data,
        rows=batch.rows,
        parameters=modules[0]["parameters"],
        bytes=modules[0]["bytes"],
        modules=modules,
    )


def _size(name: str, held: Iterable[Row]) -> Row:
    """Parameters and bytes of a module and everything inside it; what is tied counts once."""
    inside = [row for row in held if not name or f"{row['module']}.".startswith(f"{name}.")]
    return {
        "parameters": sum(prod(row["shape"]) for row in inside if row["kind"] == "parameter"),
        "bytes": sum(row["bytes"] for row in inside),
    }


def _calls(name: str, calls: Iterable[Row]) -> Row:
    own = [row for row in calls if row["module"] == name]
    first = own[0] if own else {"inputs": [], "outputs": []}
    return {"calls": len(own), "inputs": first["inputs"], "outputs": first["outputs"]}
