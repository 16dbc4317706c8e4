"""DataParallel with its four steps timed: PyTorch's own on accelerators, dpexp.parallel's elsewhere.

    inputs --scatter--> 15 rows --> replica 0 on devices[0] --> 15 rows --gather--> outputs
                 \\----> 15 rows --> replica 1 on devices[1] --> 15 rows --/
                        replicate          parallel_apply

Both classes call ``self.scatter``, ``self.replicate``, ``self.parallel_apply`` and ``self.gather`` in
their ``forward``, so that a subclass can time the four and change nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dpexp import parallel
from dpexp.config import ConfigError, RunConfig
from dpexp.devices import HOST, accelerators, autocast, is_virtual, running_on
from dpexp.strategies.base import Strategy
from dpexp.strategies.wrappers import Wrapper
from dpexp.timing import Timer


class Replicating(Strategy):
    """Base of the strategies that use DataParallel or its primitives."""

    def prepare(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        uses_torch(self.config, devices)  # raises ConfigError where --backend does not know the devices


class Replica:
    """One replica's call, labelled with its number and device, timed, and under the run's autocast.

    ``torch.nn.parallel`` takes into its threads that autocast is on, but not its type.
    """

    def __init__(
        self, module: nn.Module, replica: int, device: torch.device, timer: Timer, autocast_type: str
    ) -> None:
        self.module = module
        self.replica = replica
        self.device = device
        self.timer = timer
        self.autocast_type = autocast_type

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        timed = self.timer.replica("parallel_apply", self.replica, self.device)
        with running_on(self.device, self.replica), timed, autocast(self.device, self.autocast_type):
            return self.module(*inputs, **kwargs)


def labelled(
    replicas: Sequence[nn.Module], places: Sequence[torch.device], timer: Timer, autocast_type: str
) -> list[Any]:
    """The replicas as callables that say who and where they are."""
    return [
        Replica(each, i, device, timer, autocast_type)
        for i, (each, device) in enumerate(zip(replicas, places, strict=False))
    ]


class _Timed(Wrapper):
    """The four steps as phases. Comes before a DataParallel class among the bases."""

    timer: Timer
    autocast_type: str

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if len(self.places) > 1:
            return super().forward(*inputs, **kwargs)
        # One device or none: DataParallel calls the module itself, without replicas.
        with self.timer.phase("forward"), running_on(*((self.places[0], 0) if self.places else (HOST, None))):
            return super().forward(*inputs, **kwargs)

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        with self.timer.phase("scatter"):
            return super().scatter(*args, **kwargs)  # type: ignore[misc]

    def replicate(self, *args: Any, **kwargs: Any) -> Any:
        with self.timer.phase("replicate"):
            return super().replicate(*args, **kwargs)  # type: ignore[misc]

    def parallel_apply(self, replicas: Sequence[nn.Module], *args: Any, **kwargs: Any) -> Any:
        with self.timer.phase("parallel_apply"):
            named = labelled(replicas, self.places, self.timer, self.autocast_type)
            return super().parallel_apply(named, *args, **kwargs)  # type: ignore[misc]

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        with self.timer.phase("gather", self.places[0]):
            return super().gather(*args, **kwargs)  # type: ignore[misc]


class TorchDataParallel(_Timed, nn.DataParallel[nn.Module]):
    """``torch.nn.DataParallel``, timed."""


class PortableDataParallel(_Timed, parallel.DataParallel):
    """``dpexp.parallel.DataParallel``, timed."""


def data_parallel_module(
    module: nn.Module, places: Sequence[torch.device], config: RunConfig, timer: Timer
) -> Wrapper:
    """The module, which must be on places[0], in the DataParallel that ``--backend`` names.

    Without places the wrapper passes its inputs through to the module, as PyTorch's does.
    """
    wrapper: _Timed
    if uses_torch(config, places):
        wrapper = TorchDataParallel(module, device_ids=list(places) or None)
    else:
        wrapper = PortableDataParallel(module, device_ids=list(places))
    wrapper.timer = timer
    wrapper.autocast_type = config.autocast
    wrapper.places = tuple(places)
    return wrapper


def uses_torch(config: RunConfig, places: Sequence[torch.device]) -> bool:
    """True where ``torch.nn.parallel`` does the work: on accelerators, unless ``--backend portable``.

    Raises ConfigError for ``--backend torch`` on devices that torch.nn.parallel does not know.
    """
    foreign = [str(device) for device in places if is_virtual(device) or device.type != "cuda"]
    if config.backend == "torch" and foreign:
        raise ConfigError(
            f"--backend torch: torch.nn.parallel works on CUDA devices, not on {', '.join(foreign)}; "
            "--backend portable does"
        )
    if not places:
        # Given no device, nn.DataParallel takes every accelerator there is.
        return config.backend != "portable" and not accelerators()
    return config.backend != "portable" and not foreign
