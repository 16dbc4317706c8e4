"""``block``: only the named submodules in DataParallel, the others on the first device.

                                 +--> block2, replica 0 --+
batch --> block1 (devices[0]) ---+--> block2, replica 1 --+--> block3 (devices[0]) --> outputs
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.strategies.block import BlockOptions
from dpexp.devices import HOST, place
from dpexp.parallel.scatter_gather import check_batch_sizes
from dpexp.strategies.base import Devices, Needs
from dpexp.strategies.modules.submodules import matching
from dpexp.strategies.placed import Placed
from dpexp.strategies.replicas.data_parallel import ReplicaSync, Replicating, data_parallel_module
from dpexp.timing import Timer


class Block(Replicating):
    """Each named block scatters its inputs and gathers its outputs; other modules get the full batch.

    A block that the model itself has in ``nn.DataParallel`` is taken out of it.
    """

    needs = Needs(devices=True, compile=False)
    options: BlockOptions

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        super().prepare(model, devices)
        for name in matching(model, self.options.block, "--block"):
            module = model.get_submodule(name)
            if isinstance(module, nn.DataParallel):  # as the tutorial writes it
                model.set_submodule(name, module.module)

        self._devices = devices

    def parts(self, devices: Devices) -> int:
        return 1  # of the model's own inputs; ``trying`` looks at those of the blocks

    @contextmanager
    def trying(self, model: nn.Module, inputs: Any) -> Iterator[None]:
        """Refuses a block whose inputs cannot be split by rows: a mask of all tokens, say."""
        with ExitStack() as hooks:
            if len(self._devices) > 1:
                for name in matching(model, self.options.block, "--block"):
                    check = partial(_check_inputs, name, self._devices)
                    block = model.get_submodule(name)
                    hooks.enter_context(block.register_forward_pre_hook(check, with_kwargs=True))
            yield

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        first = devices[0] if devices else HOST
        place(model, first)
        for name in matching(model, self.options.block, "--block"):
            block = data_parallel_module(model.get_submodule(name), devices, self.config, timer)
            model.set_submodule(name, block)
        sync = ReplicaSync(model, devices)
        return Placed(model, first, first, tuple(devices) or (HOST,), sync, timer=timer)


def _check_inputs(name: str, devices: Devices, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Raises ConfigError for a call whose tensors DataParallel would not split by the rows of the batch."""
    try:
        check_batch_sizes(args, kwargs, devices)
    except ValueError as error:
        raise ConfigError(f"--block {name}: {error}") from error
