"""Inventory: the models with a name, and the submodules of one, which --block, --host and --place name."""

import inspect
from collections.abc import Sequence
from math import prod

from dpexp.config.factories import find
from dpexp.config.run_config import RunConfig
from dpexp.engine.model_check import misfit_as_config_error
from dpexp.engine.prepare import prepare
from dpexp.measurement.observe import device_map, observe
from dpexp.models.registry import MODELS
from dpexp.record.record import Row
from dpexp.timing import Timer


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


def inventory(model: str, data: str) -> Row:
    """Run one batch of ``data`` through ``model`` on the host. Raises ConfigError as a run does.

    Returns model, data, rows of the batch, parameters, bytes, and a row for each of ``modules``, in the order
    of their definition: module, type, parameters (how many numbers) and bytes (of parameters and buffers)
    including its children, calls in one batch, inputs and outputs (lists of shapes) of the first call. A
    module without calls cannot be wrapped.
    """
    # Forward only and unverified, so that the model need not be trainable or copyable
    config = RunConfig("single", model=model, data=data, devices="cpu", eval=True, check=False)
    prepared = prepare(config, one_batch=False)  # it would also need a loss
    placed = prepared.strategy.place(prepared.model, (), Timer())
    batch = next(prepared.batches(0))
    with misfit_as_config_error(prepared.model):
        calls = observe(placed, [batch], prepared.data.objective.loss)
    tensors = device_map(placed)  # after the first batch, which lazy parameters wait for
    modules = [
        _row(name, type(module).__name__, tensors, calls) for name, module in prepared.model.named_modules()
    ]
    total = {key: modules[0][key] for key in ("parameters", "bytes")}
    return {"model": model, "data": data, "rows": batch.rows, **total, "modules": modules}


def _row(name: str, kind: str, tensors: Sequence[Row], calls: Sequence[Row]) -> Row:
    """The row of one module, with the tensors of its children; a tied parameter counts once."""
    inside = [row for row in tensors if not name or f"{row['module']}.".startswith(f"{name}.")]
    of_module = [row for row in calls if row["module"] == name]
    return {
        "module": name,
        "type": kind,
        "parameters": sum(prod(row["shape"]) for row in inside if row["kind"] == "parameter"),
        "bytes": sum(row["bytes"] for row in inside),
        "calls": len(of_module),
        "inputs": of_module[0]["inputs"] if of_module else [],
        "outputs": of_module[0]["outputs"] if of_module else [],
    }
