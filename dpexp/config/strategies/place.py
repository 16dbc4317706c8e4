"""The options of ``place``."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpexp.config.options import option
from dpexp.config.strategy_options import StrategyEntry, StrategyOptions


@dataclass(frozen=True)
class PlaceOptions(StrategyOptions):
    """Options of ``place``."""

    strategy = StrategyEntry(
        name="place",
        help="Each submodule on the device that a device map names.",
        layout="dpexp.strategies.place:Place",
        model="blocks",
        examples=(
            "--place block1=cpu:0 --place block2=cpu:1 --virtual 2",
            "--place 'block*=cuda:0' --dry-run",
        ),
        order=60,
    )

    emulated = 2
    mixes_kinds = True

    place: tuple[str, ...] = option(
        (),
        "Submodules and their device, as layers.*=cuda:0; repeat for several. Others go to the first device.",
        metavar="NAME=DEVICE",
    )

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        entries = (entry.rpartition("=") for entry in self.place)
        renamed = tuple(f"{name}={names.get(to.strip(), to)}" for name, _, to in entries)
        return replace(self, place=renamed)
