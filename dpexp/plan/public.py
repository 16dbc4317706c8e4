"""The function ``dpexp.plan``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpexp.config.errors import ConfigError
from dpexp.config.factories import live_names
from dpexp.distributed.world import World
from dpexp.engine.progress import ProgressBar
from dpexp.plan.hardware import devices_of
from dpexp.plan.layout_text import config_of
from dpexp.record.record import Row
from dpexp.run import texts_and_objects

USUAL = ("single", "whole", "ddp", "fsdp")
"""The layouts of a plan that names none; ``hybrid`` is added where the model has embeddings."""


def plan(
    model: Any = "",
    data: Any = "random",
    loss: Any = None,
    optimizer: Any = None,
    layouts: Sequence[str] = (),
    devices: str | int = "1xH100",
    *,
    memory: str | float = "",
    flops: str | float | None = None,
    link: str | float | None = None,
    quiet: bool = True,
    **options: Any,
) -> list[Row]:
    """What a training step needs in each layout on these devices, which need not be there.

    ``model``, ``data``, ``loss`` and ``optimizer`` are texts as on the command line, or objects: a module,
    also one made on the device ``meta``; a function that makes it, which is called on ``meta``; tensors, a
    data set or batches, of which the first says the shapes; a function of outputs and targets; a function of
    the parameters. ``layouts`` are strategies with their options, as ``"fsdp --checkpoint"``; by default
    single, whole, ddp, fsdp, and hybrid where the model has embeddings. ``devices`` are ``"8xH100"``, or a
    number, and ``memory`` ("24GB"), ``flops`` (per second) and ``link`` (bytes per second) say what they
    are. ``options`` are those of a run: ``batch_size`` (rows of all devices), ``dtype``, ``autocast``,
    ``accumulate``, ``checkpoint``, …. ``quiet`` hides the progress bar.

    Returns a row for each layout, of the device that needs most: ``layout``, ``devices``, ``rows``;
    ``peak_bytes`` allocated, and ``bytes`` by kind of tensor in the peak, in ``peak_module``; ``sent_bytes``
    and ``sent`` by collective; ``flops``; ``bound_s``, the seconds that a step takes at least; whether it
    ``fits``; ``most_rows`` of a device that do; ``why``. A layout that cannot be planned has None, and the
    reason as ``why``.

    Raises ConfigError for bad input: where each layout refuses it.
    """
    if isinstance(layouts, str) or not all(isinstance(text, str) for text in layouts):
        raise ConfigError(f"layouts {layouts!r}: give a list of texts, as ['ddp', 'fsdp --checkpoint']")
    if "strategy" in options:
        raise ConfigError("strategy is not an option of a plan: give layouts, as layouts=['ddp']")
    texts, objects = texts_and_objects({"model": model, "data": data, "loss": loss, "optimizer": optimizer})
    shared = options | texts | live_names(objects)
    found = devices_of(str(devices), memory, flops, link)
    if World.of() is not None:
        raise ConfigError("a plan is one process, for ranks that are not there: start it without torchrun")
    configs = {text: config_of(text, shared) for text in layouts or USUAL}
    from dpexp.plan.rows import check_not_refused, hybrid_of, row_of  # imports torch

    with ProgressBar(hidden=quiet) as progress:
        rows = list[Row]()
        for text, config in configs.items():
            progress.begin(f"plan {text}")
            rows.append(row_of(text, config, objects, found))
        if not layouts and (text := hybrid_of(configs["single"], objects)):
            rows.append(row_of(text, config_of(text, shared), objects, found))
    check_not_refused(rows)
    return rows
