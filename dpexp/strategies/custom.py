"""``custom``: the layout that a user's function makes of the model.

    def parallelize(model, mesh):          # one process (rank) per device, as under torchrun
        parallelize_module(model, mesh["tp"], {"block1": ColwiseParallel(), "block2": RowwiseParallel()})
        return fully_shard(model, mesh=mesh["dp"])

    def parallelize(model, devices):       # one process with several devices
        return nn.DataParallel(model, devices)

Ranks along the dimensions of the mesh whose names begin with ``dp`` split the rows of a batch; ranks along
any other compute the same rows. As in DDP and FSDP2, gradients are averaged over the ``dp`` ranks. The
function may use anything: DTensor, FSDP2, its own autograd functions and collectives.

A module that shards parameters by hand, as plain tensors, says how with two methods, ``full_tensor(name,
tensor)`` and ``local_tensor(name, full_tensor)``; for DTensors neither is needed.

Sharding rules: how DTensors pass through operators for which PyTorch has no rule, and what else helps.

attention on a CPU, of DTensors (batch, heads, tokens, width)
  each rank computes its rows of the batch, or its heads        Shard(0), Shard(1)
  each rank computes everything                                 Replicate()
"""

import copy
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import distributed, nn

from dpexp import tensors
from dpexp.config.errors import ConfigError, as_config_error, listed
from dpexp.config.strategy_options import CustomOptions
from dpexp.data.batch import Batch
from dpexp.devices import HOST, accelerators, move, place
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.modules import Wrapper, named_parameters, parts
from dpexp.strategies.placed import DTensorShards, Placed, full_output
from dpexp.strategies.ranks import RowWeightedSync, check_sync_batch_norm
from dpexp.tensors import map_tensors
from dpexp.timing import Timer

Parallelize = Callable[[nn.Module, Any], nn.Module]


class Custom(Strategy):
    """Calls the function of ``--layout`` with the model and a mesh, or devices."""

    needs = Needs(devices=False, full_tables=True, user_code=True)
    options: CustomOptions

    def parts(self, devices: Devices) -> int:
        return max(1, len(devices)) if self._function()[1] else self.group.dp_size

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        _, takes_devices = self._function()
        lays_out_here = all(device.type == "cpu" or device in accelerators() for device in devices)
        if (takes_devices and lays_out_here) or distributed.is_initialized():
            placed = self.place(copy.deepcopy(model), devices, Timer())
            with self._where():
                check_parameters(model, placed, self.group)

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        function, takes_devices = self._function()
        used = tuple(devices or (HOST,))
        with self._where():
            if takes_devices:
                return lay_out(function, model, list(used), used, timer)
            mesh = self.group.device_mesh(used[0])
            if mesh is None:  # a dry run
                return Placed(place(model, used[0]), used[0], used[0], used, timer=timer)
            return lay_out(function, model, mesh, used, timer, self.group)

    def _function(self) -> tuple[Parallelize, bool]:
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
            if not takes_devices and not self.options.mesh and not distributed.is_initialized():
                raise ConfigError(
                    "the function takes a mesh of ranks: give --mesh, as --mesh dp=2,tp=2, or start the "
                    "ranks with torchrun. A function (model, devices) gets the devices of one process"
                )
        return factory.bound(function, 2), takes_devices

    @contextmanager
    def _where(self) -> Iterator[None]:
        """Errors inside begin with the option."""
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
    something else than a module, or a SyncBatchNorm of ranks on the host.
    """
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    laid_out: Any = function(model if isinstance(target, list) else place(model, devices[0]), target)
    if not isinstance(laid_out, nn.Module):
        raise ConfigError(
            f"the function returned {type(laid_out).__name__}, not a torch.nn.Module: return the model, "
            "or what wraps it"
        )
    for sharded in _sharded(laid_out):
        sharded.reshard()  # it may have computed already
    check_sync_batch_norm(laid_out, devices[0])
    register_attention(laid_out)
    module = FullOutputs(laid_out, devices[0])
    return Placed(
        module,
        devices[0],
        devices[0],
        devices,
        CustomSync(group.dp_size if group else 1),
        CustomShards(laid_out, shapes),
        is_opaque=True,
        timer=timer,
    )


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
                f"{tuple(written[name].shape)}: shard it as a DTensor, or give the module a method "
                "full_tensor(name, tensor) that returns the full one"
            )


def second_parameter(function: Callable[..., Any]) -> str:
    """The name of the second parameter of a layout's function. Raises ConfigError if it has fewer."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.kind in positional]
    if len(names) < 2:
        raise ConfigError(f"the function takes ({', '.join(names)}), not (model, mesh)")
    return names[1]


class CustomShards(DTensorShards):
    """The module may know how it shards its parameters by hand."""

    def __init__(self, module: nn.Module, full_shapes: Mapping[str, torch.Size]) -> None:
        self.module, self.full_shapes = module, full_shapes

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        by_hand = getattr(self.module, "full_tensor", None)
        full = super().full_tensor(name, tensor)
        return full if by_hand is None else by_hand(name, full)

    def total_norm(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A parameter may be on some ranks only, as in the stages of a pipeline."""
        norms = {name: float(self.norm(name, gradient)) for name, gradient in gradients.items()}
        if distributed.is_initialized():
            by_rank: list[dict[str, float]] = [{} for _ in range(distributed.get_world_size())]
            distributed.all_gather_object(by_rank, norms)
            norms = {name: norm for of_rank in by_rank for name, norm in of_rank.items()}
        return torch.tensor(math.hypot(*norms.values()), dtype=torch.float64)

    def norm(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        by_hand = getattr(self.module, "full_tensor", None)
        if by_hand is None:
            return super().norm(name, gradient)
        return tensors.norm(self.full_tensor(name, gradient))

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        by_hand = getattr(self.module, "local_tensor", None)
        super().load_full_tensor(name, tensor, value if by_hand is None else by_hand(name, value))


class CustomSync(RowWeightedSync):
    """As for DDP; the layout's own hooks bring the gradients together."""

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        try:
            super().backward(loss, batch)
        except (NotImplementedError, RuntimeError) as error:
            if (better := explained(error, nn.Module())) is not None:
                raise better from error
            raise


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

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        try:
            outputs = self.module(*inputs, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if (better := explained(error, self)) is not None:
                raise better from error
            raise
        outputs = move(map_tensors(full_output, outputs), self.device)
        if self._sharded and not torch.is_grad_enabled():
            outputs = map_tensors(torch.clone, outputs)  # of gathered parameters, whose memory is released
            for module in self._sharded:
                module.reshard()
        return outputs


def _sharded(module: nn.Module) -> list[Any]:
    """The modules that FSDP2 gathers and shards again."""
    return [each for each in module.modules() if hasattr(each, "set_reshard_after_forward")]


NOTE = "attention of DTensors on a CPU has no sharding rule in PyTorch: dpexp has registered one"
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_MISSING = re.compile(r"[Oo]perator (\S+) does not have a sharding strategy")
_MIXED = re.compile(r"(\S+)[: ]+got mixed torch.Tensor and DTensor")
_used: set[str] = set()


def register_attention(module: nn.Module) -> None:
    """Give PyTorch the rule of attention on a CPU where a layout has DTensors there, and none is known."""
    meshes = (getattr(parameter, "device_mesh", None) for parameter in module.parameters())
    if not any(mesh is not None and mesh.device_type == "cpu" for mesh in meshes):
        return
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    known = [table for table in vars(propagator).values() if isinstance(table, Mapping)]
    for suffix, rule in (("", _forward), ("_backward", _backward)):
        operator = getattr(torch.ops.aten, f"{_ATTENTION}{suffix}").default
        if not any(operator in table for table in known):
            register_sharding(operator)(rule)


def notes() -> list[str]:
    """Which rules of dpexp's DTensors have used in this process."""
    return sorted(_used)


def _forward(
    q: Any, k: Any, v: Any, *options: Any, attn_mask: Any = None, **others: Any
) -> list[tuple[list[Any], list[Any]]]:
    """Placements of the outputs and logarithms of sums, and those of the inputs."""
    of_mask, chosen = _placements(q, k, attn_mask)
    return [([p, p], [p, p, p, None, None, of_mask, None]) for p in chosen]


def _backward(
    gradient: Any, q: Any, k: Any, *saved: Any, attn_mask: Any = None, **others: Any
) -> list[tuple[list[Any], list[Any]]]:
    """Placements of the gradients, and those of the inputs."""
    of_mask, chosen = _placements(q, k, attn_mask)
    return [([p, p, p], [p] * 6 + [None, None, of_mask, None]) for p in chosen]


def _placements(q: Any, k: Any, mask: Any) -> tuple[Any, list[Any]]:
    """That of the mask, and those that queries, keys and values may have.

    PyTorch does not redistribute a mask, so it is replicated. Fewer keys than queries have heads in groups.
    """
    from torch.distributed.tensor import Replicate, Shard

    _used.add(NOTE)
    if mask is not None and not all(placement.is_replicate() for placement in mask.placements):
        raise NotImplementedError("a mask of attention on DTensors must be replicated over their mesh")
    ranks = q.mesh.size()
    has_whole_groups = q.shape[1] == k.shape[1] or not (q.shape[1] % ranks or k.shape[1] % ranks)
    dims = (0, 1) if has_whole_groups else (0,)
    is_same = {dim: mask is None or mask.ndim < 4 or mask.shape[dim] == 1 for dim in dims}
    return None if mask is None else Replicate(), [Replicate(), *(Shard(dim) for dim in dims if is_same[dim])]


def explained(error: Exception, module: nn.Module) -> NotImplementedError | None:
    """The error of an operator that DTensors cannot pass, with its module and what one can do; else None."""
    text = str(error)
    if operator := _MISSING.search(text):
        why = f"PyTorch has no sharding rule for {operator[1]}"
    elif operator := _MIXED.search(text):
        why = f"{operator[1]} gets a DTensor beside a plain tensor"
    else:
        return None
    return NotImplementedError(
        f"{_where(module, error.__traceback__)}: {why}. Give the module plain tensors (use_local_output=True "
        "of what comes before it, or to_local() before the operator and DTensor.from_local() after it), make "
        "the other tensor a DTensor, or register a rule with "
        "torch.distributed.tensor.experimental.register_sharding"
    )


def _where(module: nn.Module, traceback: TracebackType | None) -> str:
    """The innermost module of the model in which the error was raised."""
    names = {id(part.module): part.name for part in parts(module)}
    found = None
    while traceback is not None:
        found = names.get(id(traceback.tb_frame.f_locals.get("self")), found)
        traceback = traceback.tb_next
    return "the backward" if found is None else f"module '{found}'" if found else "the model itself"
