"""Torch facts: what a run computes with, and what the objects that a program gave to it compute."""

import hashlib
import inspect
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dpexp import devices
from dpexp.engine.references import Reference
from dpexp.record.record import Row


def torch_environment() -> Row:
    """What torch computes with. Threads and vector instructions of the CPU change the last bits of results.

    ``accelerators`` are ``{name, memory}``, in bytes.
    """
    found = (device for device in devices.accelerators() if device.type == "cuda")
    properties = [torch.cuda.get_device_properties(device) for device in found]
    return {
        "cuda": torch.version.cuda,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "accelerators": [{"name": device.name, "memory": device.total_memory} for device in properties],
    }


def object_hashes(named: Iterable[Reference], data_sha256: str) -> list[Row]:
    """``{path, sha256}`` of each object of a program among the references; its name stands for the path.

    ``data_sha256`` is that of the samples, for data that is such an object.
    """
    return [
        {
            "path": each.text,
            "sha256": (each.option == "data" and data_sha256) or object_sha256(each.factory.live),
        }
        for each in named
        if each.factory.is_live
    ]


def object_sha256(value: Any) -> str:
    """Of what an object computes.

    It covers the structure of a module and the shapes of its state, not its weights, which repeats may draw
    again. It covers the source of its classes, or of a function, where that is known.
    """
    lines, sources = [re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))], [value]
    if isinstance(value, nn.Module):
        for key, entry in value.state_dict().items():
            shape = "lazy" if is_lazy(entry) else tuple(getattr(entry, "shape", ()))
            lines.append(f"{key} {shape} {getattr(entry, 'dtype', '')}")
        kinds = (kind for module in value.modules() for kind in type(module).__mro__)
        sources = list(dict.fromkeys(kinds))
    lines += map(_source, sources)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _source(value: Any) -> str:
    if str(getattr(value, "__module__", "")).partition(".")[0] == "torch":
        return ""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):  # typed into an interpreter, or an object of another kind
        return ""
