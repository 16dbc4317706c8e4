"""Inventory: the submodules of a model, with the names that --block, --host and --place take."""

from collections.abc import Sequence
from math import prod

from dpexp.config.run_config import RunConfig
from dpexp.models.registry import MODELS
from dpexp.record.record import Row


def registry() -> list[Row]:
    """A row for each registered model: name, help, and its options with type, default and help."""
    rows = []
    for name, entry in MODELS.items():
        options = [
            {"option": each.name, "type": each.type.__name__, "default": each.default, "help": each.help}
            for each in entry.options
        ]
        rows.append({"model": name, "help": entry.help, "options": options})
    return rows


def inventory(model: str, data: str) -> Row:
    """Run one batch of ``data`` through ``model`` on the host. Raises ConfigError as a run does.

    Returns model, data, rows of the batch, parameters, bytes, and a row for each of ``modules``, in the order
    of their definition: module, type, parameters (how many numbers) and bytes (of parameters and buffers)
    including its children, calls in one batch, inputs and outputs (lists of shapes) of the first call. A
    module without calls cannot be wrapped.
    """
    from dpexp.engine.model_check import misfit_as_config_error
    from dpexp.engine.prepare import prepare
    from dpexp.measurement.observe import device_map, observe
    from dpexp.timing import Timer

    # Forward only and unverified, so that the model need not be trainable or copyable
    config = RunConfig("single", model=model, data=data, devices="cpu", eval=True, check=False)
    prepared = prepare(config, one_batch=False)  # it would also need a loss
    placed = prepared.strategy.place(prepared.model, (), Timer())
    batch = next(prepared.batches(0))
    with misfit_as_config_error(prepared.model):
        calls = observe(placed, [batch], prepared.data.loss)
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
