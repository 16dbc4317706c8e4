"""``custom``: a user's function lays the model out over ranks or devices.

    function(model, mesh)     -->  a module whose parameters may be shards, and whose outputs may be DTensors
    function(model, devices)  -->  a module over the devices of one process

A function may also return a ``Placed`` around such a module, whose ``step`` is then the step of the layout.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from dpexp import tensors
from dpexp.config.errors import ConfigError, as_config_error
from dpexp.config.strategy_options import CustomOptions
from dpexp.config.words import listed
from dpexp.copies import copied_module
from dpexp.devices import HOST, accelerators, move, place
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.modules import Wrapper, named_parameters
from dpexp.strategies.placed import GradientSync, Placed, Shards, full_output
from dpexp.strategies.sync_batch_norm import check_sync_batch_norm
from dpexp.tensors import map_tensors
from dpexp.timing import Timer

Parallelize = Callable[[nn.Module, Any], nn.Module | Placed]


class Custom(Strategy):
    """Calls the function of ``--layout`` with the model and a mesh, or devices."""

    needs = Needs(devices=False, user_code=True)
    options: CustomOptions

    @property
    def has_ranks(self) -> bool:
        """Whether the function takes a mesh. Raises ConfigError as ``place``."""
        return super().has_ranks or not self._function(is_planned=True)[1]

    def row_parts(self, devices: Devices) -> int:
        """Over ranks those of the mesh that split rows; over devices at most one for each."""
        return max(1, len(devices)) if self._function()[1] else self.group.dp_size

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        """Lay a copy out, where this process can. Raises ConfigError for what the function makes of it."""
        _, takes_devices = self._function()
        lays_out_here = all(device.type == "cpu" or device in accelerators() for device in devices)
        lays_out_here &= not any(tensor.is_meta for tensor in model.parameters())
        has_mesh = distributed.is_initialized() and not self.group.is_absent
        if (takes_devices and lays_out_here) or has_mesh:
            placed = self.place(copied_module(model), devices, Timer())
            with self._where():
                check_parameters(model, placed, self.group)

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """What the function makes of the model. Raises ConfigError."""
        function, takes_devices = self._function()
        used = tuple(devices or (HOST,))
        with self._where():
            if takes_devices:
                return lay_out(function, model, list(used), used, timer)
            mesh = self.group.device_mesh(used[0])
            if mesh is None:  # a dry run
                return Placed(place(model, used[0]), used[0], used[0], used, timer=timer)
            return lay_out(function, model, mesh, used, timer, self.group)

    def _function(self, is_planned: bool = False) -> tuple[Parallelize, bool]:
        """The function, and whether it takes devices and not a mesh. Raises ConfigError."""
        if not self.options.layout:
            raise ConfigError(
                "custom needs --layout FILE.py:FUNCTION, a function (model, mesh) -> module, "
                "or (model, devices) -> module"
            )
        factory = self.options.factories["layout"]
        with self._where():
            function = factory.load()
            takes_devices = second_parameter(function) == "devices"
            has_mesh = self.options.mesh or is_planned or distributed.is_initialized()
            if not takes_devices and not has_mesh:
                raise ConfigError(
                    "the function takes a mesh of ranks: give --mesh, as --mesh dp=2,tp=2, or start the "
                    "ranks with torchrun. A function (model, devices) gets the devices of one process"
                )
        return factory.bound(function, 2), takes_devices

    @contextmanager
    def _where(self) -> Iterator[None]:
        where = f"--layout {self.options.layout}"
        try:
            with as_config_error("the function"):
                yield
        except ConfigError as error:
            raise ConfigError(f"{where}: {str(error).removeprefix(where + ': ')}") from error


def lay_out(
    function: Parallelize,
    model: nn.Module,
    target: Any,
    devices: tuple[torch.device, ...],
    timer: Timer,
    group: ProcessGroup | None = None,
) -> Placed:
    """What ``function(model, target)`` makes of the model; ``target`` is a mesh, or the list of devices.

    For a mesh the model is moved to the device of this rank first. Raises ConfigError where it makes
    something else than a module or a Placed, or a SyncBatchNorm of ranks on the host.
    """
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    laid_out: Any = function(model if isinstance(target, list) else place(model, devices[0]), target)
    placed = Placed(laid_out) if isinstance(laid_out, nn.Module) else laid_out
    if not isinstance(placed, Placed):
        raise ConfigError(
            f"the function returned {type(laid_out).__name__}, not a torch.nn.Module: return the model, "
            "or what wraps it, or a dpexp.strategies.placed.Placed"
        )
    _check_step(placed)
    module = placed.module
    for sharded in _sharded(module):
        sharded.reshard()  # it may have computed already
    check_sync_batch_norm(module, devices[0])
    placed.module, placed.shards = FullOutputs(module, devices[0]), CustomShards(module, shapes)
    placed.input_device = placed.output_device = devices[0]
    placed.devices, placed.timer, placed.is_opaque = devices, timer, True
    placed.gradient_sync = GradientSync(group.dp_size if group else 1)
    return placed


def _check_step(placed: Placed) -> None:
    """Raises ConfigError for a step that does not take what ``Placed.step`` takes."""
    names = [*inspect.signature(Placed.step).parameters][1:]
    try:
        inspect.signature(placed.step).bind(*names)
    except TypeError as error:
        raise ConfigError(f"the layout's own step does not take ({', '.join(names)}): {error}") from error


def check_parameters(model: nn.Module, placed: Placed, group: ProcessGroup) -> None:
    """Raises ConfigError unless a placed module has the parameters of the model, by name and full shape."""
    written, found = dict(model.named_parameters()), named_parameters(placed.module)
    unknown = sorted(found.keys() - written.keys())
    missing = sorted(written.keys() - group.complete(dict.fromkeys(found)).keys())
    if unknown or missing:
        lacks = [f"lacks parameters of the model: {listed(missing)}"] if missing else []
        has = [f"has parameters of its own: {listed(unknown)}"] if unknown else []
        raise ConfigError(
            f"the module {'; it '.join([*lacks, *has])}. "
            "Parameters keep their names and ties: replace modules inside the model, or wrap it in DDP"
        )
    for name, parameter in found.items():
        shape = placed.shards.full_tensor(name, parameter).shape
        if shape != written[name].shape:
            raise ConfigError(
                f"parameter {name} has shape {tuple(shape)}, in the model it has "
                f"{tuple(written[name].shape)}: shard it as a DTensor, or give the model a method "
                "full_tensor(name, tensor) that returns the full one"
            )


def second_parameter(function: Callable[..., Any]) -> str:
    """The name of the second parameter of a layout's function. Raises ConfigError if it has fewer."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.kind in positional]
    if len(names) < 2:
        raise ConfigError(f"the function takes ({', '.join(names)}), not (model, mesh) or (model, devices)")
    return names[1]


class CustomShards(Shards):
    """The module may know how it shards its parameters by hand."""

    def __init__(self, module: nn.Module, full_shapes: Mapping[str, torch.Size]) -> None:
        self.module, self.full_shapes = module, full_shapes

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The parameter's full shape, by the module's own ``full_tensor`` if it has one."""
        by_hand = getattr(self.module, "full_tensor", None)
        full = super().full_tensor(name, tensor)
        return full if by_hand is None else by_hand(name, full)

    def total_norm(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A scalar. A parameter may be on some ranks only, as in the stages of a pipeline."""
        norms = {name: float(self.norm(name, gradient)) for name, gradient in gradients.items()}
        if distributed.is_initialized():
            by_rank: list[dict[str, float]] = [{} for _ in range(distributed.get_world_size())]
            distributed.all_gather_object(by_rank, norms)
            norms = {name: norm for of_rank in by_rank for name, norm in of_rank.items()}
        return torch.tensor(math.hypot(*norms.values()), dtype=torch.float64)

    def norm(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """A scalar, of the full gradient."""
        by_hand = getattr(self.module, "full_tensor", None)
        if by_hand is None:
            return super().norm(name, gradient)
        return tensors.norm(self.full_tensor(name, gradient))

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """``value`` has the full shape; the module's own ``local_tensor`` cuts the shard out."""
        by_hand = getattr(self.module, "local_tensor", None)
        super().load_full_tensor(name, tensor, value if by_hand is None else by_hand(name, value))


class FullOutputs(Wrapper):
    """The model, whose outputs are full tensors of this rank's rows on the device, for the loss.

    ``fully_shard`` keeps the root's parameters gathered after a forward, until backward shards them again.
    After a forward without a backward they are sharded here: an optimizer made then would get the gathered
    ones, and train nothing.
    """

    transparent = True

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.module = module
        self.device = device
        self._sharded = _sharded(module)
        meshes = (getattr(parameter, "device_mesh", None) for parameter in module.parameters())
        self._has_dtensors_on_host = any(mesh is not None and mesh.device_type == "cpu" for mesh in meshes)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Inputs and outputs ``(rows, …)`` of this rank."""
        with AttentionOfDTensors() if self._has_dtensors_on_host else nullcontext():
            outputs = self.module(*inputs, **kwargs)
        outputs = move(map_tensors(full_output, outputs), self.device)
        if self._sharded and not torch.is_grad_enabled():
            outputs = map_tensors(torch.clone, outputs)  # of gathered parameters, whose memory is released
            for module in self._sharded:
                module.reshard()
        return outputs


def _sharded(module: nn.Module) -> list[Any]:
    return [each for each in module.modules() if hasattr(each, "set_reshard_after_forward")]


class AttentionOfDTensors(TorchFunctionMode):
    """Attention on a CPU consists of operators that DTensors pass, since PyTorch has no rule for its own.

    Where it is causal it makes a mask, a plain tensor, which is then the same on all ranks. What a checkpoint
    computes again in backward is outside.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query = args[0] if args else kwargs["query"]
        if not hasattr(query, "placements") or query.device.type != "cpu":
            return func(*args, **kwargs)
        # DTensors take long to import
        from torch.distributed.tensor.experimental import implicit_replication

        with sdpa_kernel(SDPBackend.MATH), implicit_replication():
            return func(*args, **kwargs)
