"""Touched rows: a model whose large embedding tables have only the rows that some batches look up.

    ids 7, 90210, 7  -->  remapped 1, 2, 1  -->  a table of rows 0, 7, 90210, 3999999

Verification compares several copies of a model. Copies of these rows instead of the tables compute the same
outputs, loss and gradients, whose other rows are zero, in a few megabytes. Some other rows are kept as well:
a layout that places a table otherwise, or gives a gradient to a row that nothing looked up, is found by them.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.copies import copied_module, hooked_parameters
from dpexp.data.batch import Batch
from dpexp.strategies.module_calls import ModuleCall, module_calls
from dpexp.strategies.modules import EmbeddingTable
from dpexp.training.preserve import preserved
from dpexp.verification.alone import alone

LARGE = 1 << 20
"""Numbers of a table from which on verification uses its touched rows only."""

EVEN = 64
"""So many rows of each large table are compared, whether a batch looks them up or not."""


def large_tables(model: nn.Module) -> dict[str, EmbeddingTable]:
    """The large embedding tables that are used by lookups only, by name."""
    hooked = set(hooked_parameters(model))
    names = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    return {
        name: part
        for name, part in model.named_modules(remove_duplicate=False)
        if type(part) in (nn.Embedding, nn.EmbeddingBag)
        and part.weight.numel() >= LARGE
        and part.max_norm is None
        and names[id(part.weight)] == 1
        and f"{name}.weight".lstrip(".") not in hooked
        and name
    }


class UnknownIdError(RuntimeError):
    """An id whose row a reduced table does not have."""


@dataclass(frozen=True)
class Remap:
    """A pre-hook: replaces the ids of a full table by those of the table with only these ``rows`` (n,)."""

    rows: torch.Tensor

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments of the reduced table. Raises UnknownIdError."""
        ids = _ids(args, kwargs)
        rows = self.rows.to(ids.device)
        places = torch.searchsorted(rows, ids.long().contiguous()).clamp(max=len(rows) - 1)
        if not torch.equal(rows[places], ids.long()):
            raise UnknownIdError("a forward looks up rows that the same batch did not look up before")
        return ((places, *args[1:]), kwargs) if args else (args, kwargs | {"input": places})


def _ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    ids: torch.Tensor = args[0] if args else kwargs["input"]
    return ids


def with_touched_rows(model: nn.Module, batches: Sequence[Batch]) -> tuple[nn.Module, list[str]]:
    """A copy of the model with the rows that the batches touch, and notes; the model itself where that is not
    possible: without large tables, or where the copy computes other outputs than the model.
    """
    tables = large_tables(model)
    if not tables:
        return model, []
    state = torch.get_rng_state()
    touched: dict[nn.Module, list[torch.Tensor]] = {table: [] for table in tables.values()}

    def add(call: ModuleCall) -> None:
        if call.module in touched:
            touched[call.module].append(torch.unique(_ids(*call.inputs)))

    with module_calls(model, entered=add):
        outputs = _outputs(model, batches, state)
    rows = {name: _rows(table, touched[table]) for name, table in tables.items()}
    chosen = {name: ids for name, ids in rows.items() if 2 * len(ids) <= len(tables[name].weight)}
    memo: dict[int, Any] = {}
    for name, ids in chosen.items():
        reduced_table = _reduced(tables[name], ids)
        memo |= {id(tables[name]): reduced_table, id(tables[name].weight): reduced_table.weight}
    reduced = copied_module(model, memo)
    again = _outputs(reduced, batches, state)  # fewer where a table is used in another way than by lookups
    if not (chosen and len(again) == len(outputs) and all(map(torch.equal, outputs, again))):
        return model, []
    return reduced, [
        f"{name} was compared in {len(ids)} of its {len(tables[name].weight):,} rows, all that batches use"
        for name, ids in chosen.items()
    ]


def touched_rows(reduced: nn.Module) -> dict[str, torch.Tensor]:
    """The ids, of shape (n,), of the rows that a reduced model has of large tables, by parameter."""
    return {
        f"{name}.weight": hook.rows
        for name, module in reduced.named_modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, Remap)
    }


def _outputs(model: nn.Module, batches: Sequence[Batch], state: torch.Tensor) -> list[torch.Tensor]:
    """The outputs of the batches that the model takes, from a random state; it and buffers do not change."""
    outputs = list[torch.Tensor]()
    with preserved(model), torch.no_grad(), alone():
        torch.set_rng_state(state)
        for batch in batches:
            with suppress(Exception):  # of any kind: it is the user's model
                outputs += [each.clone() for each in tensors.walk(model(*batch.copied().inputs))]
    return outputs


def _rows(table: EmbeddingTable, touched: list[torch.Tensor]) -> torch.Tensor:
    """The rows to keep, sorted; of others some at even distances, the first and the last."""
    even = torch.linspace(0, table.num_embeddings - 1, EVEN, dtype=torch.float64).long()
    padding = torch.tensor([] if table.padding_idx is None else [table.padding_idx], dtype=torch.long)
    rows: torch.Tensor = torch.unique(torch.cat([even, padding, *(ids.long() for ids in touched)]))
    return rows


def _reduced(table: EmbeddingTable, rows: torch.Tensor) -> Any:
    """The table with only these rows, to look up by the ids of the full one."""
    reduced = copy.copy(table)
    for key, value in vars(table).items():
        if isinstance(value, dict):  # of parameters, hooks, …
            reduced.__dict__[key] = value.copy()
    reduced.weight = nn.Parameter(table.weight.detach()[rows], table.weight.requires_grad)
    reduced.num_embeddings = len(rows)
    if table.padding_idx is not None:
        reduced.padding_idx = int(torch.searchsorted(rows, table.padding_idx))
    reduced.register_forward_pre_hook(Remap(rows), with_kwargs=True)
    return reduced
