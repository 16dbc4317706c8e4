"""Host calls: which lookups a model does, learned from a forward, to be done ahead of that of another batch.

batch --> model --> host module --> table(ids) --> vectors        ids come from the batch alone
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.strategies.hybrid.table_shards import with_own_forward
from dpexp.strategies.modules.tables import placed_tables, tables


class AllLookedUp(BaseException):
    """Ends the forward of a host module after its last lookup: the rest is computed in the batch's step."""


@dataclass
class HostCall:
    """A call of a host module in the forward: ``sources`` are the numbers of its tensors in the batch."""

    host: nn.Module
    arguments: Any
    sources: list[int]
    lookups: int = 0

    def run(self, inputs: Sequence[torch.Tensor]) -> None:
        """Call the module on another batch, of which ``inputs`` are all tensors."""
        found = (inputs[source] for source in self.sources)
        args, kwargs = tensors.map_tensors(lambda _: next(found), self.arguments)
        self.host(*args, **kwargs)


@contextmanager
def host_calls(hosts: Sequence[nn.Module], inputs: Any) -> Iterator[list[HostCall]]:
    """The calls of the hosts in a forward inside, whose batch has these inputs; complete at the end.

    Raises ConfigError where a host gets a tensor that is not one of the batch.
    """
    calls: list[HostCall] = []
    leaves = list(tensors.walk(inputs))

    def enter(host: nn.Module, args: Any, kwargs: Any) -> None:
        sources = [_number(leaves, tensor, host) for tensor in tensors.walk((args, kwargs))]
        kept = tensors.map_tensors(lambda _: torch.empty(0), (args, kwargs))
        calls.append(HostCall(host, kept, sources))

    def look_up(table: nn.Module, args: Any, vectors: Any) -> None:
        calls[-1].lookups += 1

    with ExitStack() as hooks:
        for host in dict.fromkeys(hosts):
            hooks.enter_context(host.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
            for table in placed_tables(host):
                hooks.enter_context(table.register_forward_hook(look_up))
        yield calls
    calls[:] = [call for call in calls if call.lookups]


def _number(leaves: Sequence[torch.Tensor], tensor: torch.Tensor, host: nn.Module) -> int:
    for number, leaf in enumerate(leaves):
        if leaf is tensor:
            return number
    raise ConfigError(
        "--pipeline looks up the ids of the next batch, and the model computes the input of "
        f"{_first_line(host)}: it is not a tensor of the batch. Compute it in the data, or in a module "
        "around the table that --host names, or use --serial"
    )


def _first_line(module: nn.Module) -> str:
    return repr(module).partition("\n")[0].rstrip("(")


# --- what cannot be looked up ahead ---------------------------------------------------------------


def check_lookups(host: nn.Module, where: str) -> None:
    """Raises ConfigError for a host module whose lookups cannot be done ahead exactly."""
    found = tables(host)
    of_tables = {id(table.weight) for table in found}
    others = [name for name, each in host.named_parameters() if id(each) not in of_tables]
    renorming = [table for table in found if table.max_norm is not None]
    hooked = [name for name, part in host.named_modules() if part._forward_hooks or part._forward_pre_hooks]
    problem = ""
    if others:
        problem = f"has parameters that are not tables ({', '.join(others)}), which every step changes: "
        problem += "name its tables with --host"
    elif own := with_own_forward(found):
        problem = f"has {own[0]}, which computes more than a lookup in its forward: compute it in a module "
        problem += "around the table"
    elif renorming:
        problem = f"has {renorming[0]}, whose lookups write to the table: leave max_norm out"
    elif hooked:
        problem = f"has forward hooks ({', '.join(name or 'its own' for name in hooked)}): remove them"
    if problem:
        raise ConfigError(f"--pipeline: {where} {problem}, or use --serial")


@contextmanager
def trying_lookups(hosts: Mapping[str, nn.Module], inputs: Any) -> Iterator[None]:
    """Around a forward on the host. Raises ConfigError where lookups ahead would be others than its own."""
    leaves = list(tensors.walk(inputs))
    versions = [leaf._version for leaf in leaves]
    with host_calls(list(hosts.values()), inputs) as calls, _without_draws(hosts):
        yield
    if versions != [leaf._version for leaf in leaves]:
        raise ConfigError(
            "--pipeline: the forward writes to the tensors of the batch in place, and host modules, which "
            "are called ahead and again, would do it twice: compute new tensors, or use --serial"
        )
    for call in calls:
        name = next(name for name, host in hosts.items() if host is call.host)
        with ExitStack() as hooks:
            for table in tables(call.host):
                hooks.enter_context(table.register_forward_hook(lambda *call: call[-1].to("meta")))
            try:
                call.run(leaves)
            except Exception as error:
                raise ConfigError(
                    f"--pipeline: '{name}' computes from its vectors and other tensors, and looked up ahead "
                    "the vectors are on the accelerator: compute it outside of the module, or use --serial"
                ) from error


@contextmanager
def _without_draws(hosts: Mapping[str, nn.Module]) -> Iterator[None]:
    states: dict[str, torch.Tensor] = {}

    def enter(name: str, *_: Any) -> None:
        states[name] = torch.get_rng_state()

    def look_up(name: str, *_: Any) -> None:
        if not torch.equal(states[name], torch.get_rng_state()):
            raise ConfigError(
                f"--pipeline: '{name}' draws random numbers before its lookups, and would draw those of the "
                "next batch too early: draw them outside of it, or use --serial"
            )

    with ExitStack() as hooks:
        for name, host in hosts.items():
            for table in tables(host):  # the host may be a table itself: its first hook comes first
                hooks.enter_context(host.register_forward_pre_hook(partial(enter, name)))
                hooks.enter_context(table.register_forward_pre_hook(partial(look_up, name)))
        yield
