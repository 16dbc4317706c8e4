"""Lookups in embedding tables on the host: which of them a model does, and one that was done ahead.

batch --> model --> host module --> table(ids) --> vectors        ids come from the batch alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.devices import Copies
from dpexp.strategies.hybrid.sharded_embedding import ShardedEmbeddingBag
from dpexp.strategies.hybrid.table_shards import with_own_forward
from dpexp.strategies.tables import PlacedTable, placed_tables, tables


class AllLookedUp(BaseException):
    """Ends the forward of a host module after its last lookup: the rest is computed in the batch's step."""


# --- which lookups a model does -------------------------------------------------------------------


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


# --- lookups that were done ahead -----------------------------------------------------------------


@dataclass(eq=False)
class Lookup:
    """One call of a table: its arguments, the vectors, and the node of its backward."""

    table: PlacedTable
    arguments: Mapping[str, Any]
    vectors: torch.Tensor
    node: Any

    @classmethod
    def of(cls, table: PlacedTable, args: Any, kwargs: Any, vectors: torch.Tensor) -> Lookup:
        """A lookup just done."""
        return cls(table, named_arguments(args, kwargs), vectors.detach(), vectors.grad_fn)

    @property
    def ids(self) -> torch.Tensor:
        """The ids, as the table got them: the rows of ``source``."""
        ids: torch.Tensor = self.arguments["input"]
        return ids

    @property
    def source(self) -> torch.Tensor:
        """What the vectors were looked up in."""
        return self.table.weight

    @property
    def rows(self) -> torch.Tensor:
        """The rows of the table's weight that this process read, in one dimension."""
        return self.ids.reshape(-1)

    def is_of(self, table: PlacedTable, args: Any, kwargs: Any) -> bool:
        """Whether it has the vectors of this call."""
        found, expected = named_arguments(args, kwargs), self.arguments
        return (
            self.table is table
            and found.keys() == expected.keys()
            and all(_same(value, found[key]) for key, value in expected.items())
        )

    def read_again(self, stale: torch.Tensor) -> None:
        """Replace the vectors of the ids at these positions by what the table has now."""
        with torch.no_grad():
            is_bag = isinstance(self.table, nn.EmbeddingBag | ShardedEmbeddingBag)
            positions, vectors = self._bags(stale) if is_bag else self._rows(stale)
            flat = self.vectors.view(-1, self.vectors.shape[-1])
            flat.index_copy_(0, positions.to(flat.device), vectors.to(flat.device))

    def _rows(self, stale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return stale, self.source[self.ids.reshape(-1)[stale]]

    def _bags(self, stale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The bags with a stale id, each pooled again from all of its ids."""
        ids, (offsets, weights) = self.ids, (self.arguments.get(key) for key in _NAMES[1:])
        if ids.dim() == 2:
            bags = torch.unique(stale // ids.shape[1])
            return bags, self._pool(ids[bags], None, None if weights is None else weights[bags])
        assert offsets is not None  # ids in one dimension have them
        bag_of = torch.searchsorted(offsets, torch.arange(len(ids)), right=True) - 1
        bags = torch.unique(bag_of[stale])
        kept = torch.isin(bag_of, bags)
        starts = torch.searchsorted(bag_of[kept], bags)
        table: Any = self.table
        if table.include_last_offset:
            starts = torch.cat([starts, kept.sum().reshape(1)])
        return bags, self._pool(ids[kept], starts, None if weights is None else weights[kept])

    def _pool(self, ids: torch.Tensor, offsets: Any, weights: Any) -> torch.Tensor:
        pooled: torch.Tensor = vars(nn.EmbeddingBag)["forward"](self.table, ids, offsets, weights)
        return pooled


_NAMES = ("input", "offsets", "per_sample_weights")


def named_arguments(args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a table's forward by name, without those left out."""
    named = dict(zip(_NAMES, args, strict=False)) | dict(kwargs)
    return {key: value for key, value in named.items() if value is not None}


def _same(value: torch.Tensor, other: torch.Tensor) -> bool:
    is_view = value.data_ptr() == other.data_ptr() and value.stride() == other.stride()
    return value.shape == other.shape and (is_view or torch.equal(value, other))


Gradients = Callable[[Sequence[torch.Tensor | None]], Sequence[torch.Tensor | None]]


def in_graph(lookups: Sequence[Lookup], copies: Copies, to_tables: Gradients) -> Sequence[torch.Tensor]:
    """The vectors of all lookups; in backward their gradients take the way of lookups in this step.

    ``to_tables`` makes those of the tables of those of the lookups' sources.
    """
    if not torch.is_grad_enabled() or all(lookup.node is None for lookup in lookups):
        return [lookup.vectors for lookup in lookups]
    # a table that is looked up twice adds up its gradients from the last to the first, as autograd does
    weights = [lookup.table.weight for lookup in reversed(lookups)]
    vectors: Sequence[torch.Tensor] = _LookedUpAhead.apply(lookups, copies, to_tables, *weights)  # type: ignore[no-untyped-call]
    return vectors


class _LookedUpAhead(torch.autograd.Function):
    """Vectors that were looked up ahead, in the graph in place of the tables' own lookups."""

    @staticmethod
    def forward(
        ctx: Any, lookups: Sequence[Lookup], copies: Copies, to_tables: Gradients, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.nodes, ctx.copies, ctx.to_tables = [lookup.node for lookup in lookups], copies, to_tables
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(lookup.vectors for lookup in lookups if lookup.node is None))
        return tuple(lookup.vectors for lookup in lookups)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        on_host = ctx.copies.to_host(gradients)
        found = [
            None if node is None or gradient is None else _first(node(gradient))
            for node, gradient in zip(ctx.nodes, on_host, strict=True)
        ]
        return None, None, None, *reversed(ctx.to_tables(found))


def _first(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found


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
