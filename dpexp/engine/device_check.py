"""Device check: whether a layout mixes devices, before a run on emulated ones, where nothing would fail.

``predict`` knows, but importing what FakeTensorMode needs takes 0.8 s, and so it is called only where this
cheaper look is not sure: a forward in which each tensor has the label of its device.
"""

import copy
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dpexp import devices
from dpexp.data.batch import Batch
from dpexp.engine.dry_run import PlacementError, predict
from dpexp.engine.prepare import Prepared
from dpexp.tensors import walk
from dpexp.timing import Timer
from dpexp.training.preserve import eager, preserved

_DEVICE_OF: Any = torch.Tensor.device.__get__
_LABEL = "_dpexp_checked_device"


def check_devices(prepared: Prepared) -> None:
    """Raises PlacementError where the layout mixes devices in the first batch, as accelerators would."""
    batch = next(prepared.batches(0))
    if prepared.selection.is_virtual and _mixes_nothing(prepared, batch):
        return
    try:
        predict(prepared, [batch])
    except PlacementError:
        raise
    except Exception:  # of any kind: the run itself raises it, and records it
        return


def _mixes_nothing(prepared: Prepared, batch: Batch) -> bool:
    """Whether every operation has its tensors on one device; False where this cannot tell."""
    used = prepared.selection.used
    if not prepared.strategy.needs.prediction:
        used = used[:1]  # replicas on the others compute as the first does
    portable, model = replace(prepared.strategy, backend="portable", compile=False), prepared.model
    memo: dict[int, Any] = {id(buffer): buffer.detach() for buffer in model.buffers()}
    memo |= {id(each): nn.Parameter(each.detach(), each.requires_grad) for each in model.parameters()}
    try:
        placed = portable.place(copy.deepcopy(model, memo), used, Timer())
        for module in placed.module.modules():
            tensors = chain(module.parameters(recurse=False), module.buffers(recurse=False))
            _set_label(list(tensors), devices.placed_on(module))
        with (
            preserved(placed.module),
            eager(placed.module),
            torch.set_grad_enabled(portable.trains),
            devices.prediction(),
            _Labels(),
        ):
            placed.module(*devices.move(batch.inputs, placed.input_device))
    except Exception:  # of any kind: an operation on two devices, or one that takes no labels
        return False
    return True


class _Labels(TorchFunctionMode):
    """Labels each result with the device of its inputs. Raises ValueError for inputs on two devices.

    A tensor without a label is one that no module and no operation gave: it is on the host. What real devices
    allow nevertheless, as indices on the host, is left to ``predict``.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _DEVICE_OF:
            return _label(args[0])
        found = [_label(tensor) for tensor in walk((args, kwargs)) if tensor.dim()]
        if len(set(found)) > 1:
            raise ValueError(f"{func} takes tensors on {found}")
        device = _asked(func, args, kwargs) or next(iter(found), devices.HOST)
        result = func(*args, **kwargs)
        if args and result is args[0] and _label(result) != device:
            result = result.view_as(result)
        _set_label(result, device)
        return result


def _asked(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.device | None:
    """The device that a call names for its result, if it names one."""
    if func is torch.Tensor.cpu:
        return devices.HOST
    to = args[1] if func is torch.Tensor.to and len(args) > 1 else kwargs.get("device")
    return torch.device(to) if isinstance(to, str | torch.device) else None


def _label(tensor: torch.Tensor) -> torch.device:
    label: torch.device = tensor.__dict__.get(_LABEL, devices.HOST)
    return label


def _set_label(value: Any, device: torch.device) -> None:
    for tensor in walk(value):
        tensor.__dict__[_LABEL] = device
