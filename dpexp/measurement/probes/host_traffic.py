"""Host traffic: bytes of a step that modules on the host look up in tables, and copy to the device."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.strategies.modules.tables import EmbeddingTable, tables
from dpexp.strategies.placed import Placed


@dataclass
class HostTraffic:
    """Bytes of the rows that each table looks up, and of what is copied to the device."""

    looked_up: Counter[EmbeddingTable] = field(default_factory=Counter)
    copied: int = 0
    device: torch.device = devices.HOST

    def add_rows(self, table: EmbeddingTable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A hook before the forward of a table."""
        ids = args[0] if args else kwargs["input"]
        self.looked_up[table] += ids.numel() * row_bytes(table)

    def add_copy(self, _: nn.Module, args: tuple[Any, ...], outputs: Any) -> None:
        """A hook after the forward of a module on the host."""
        self.copied += sum(tensor.numel() * tensor.element_size() for tensor in tensors.walk(outputs))


def row_bytes(table: EmbeddingTable) -> int:
    """Bytes of a row of the table."""
    return int(table.weight.shape[1] * table.weight.element_size())


@contextmanager
def observed_traffic(placed: Placed) -> Iterator[HostTraffic]:
    """What the modules on the host look up and copy in the forward inside; without such modules nothing."""
    found = HostTraffic(device=placed.output_device)
    with ExitStack() as hooks:
        for module in dict.fromkeys(placed.host_modules):
            hooks.enter_context(module.register_forward_hook(found.add_copy))
            for table in tables(module):
                hooks.enter_context(table.register_forward_pre_hook(found.add_rows, with_kwargs=True))
        yield found
