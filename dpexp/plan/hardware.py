"""Accelerators: their memory, peak speed and links, for plans on devices that are not there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dpexp.config.errors import ConfigError, unknown
from dpexp.config.words import available, did_you_mean, shown

MAX_DEVICES = 100_000
DTYPES = ("float32", "float16", "bfloat16", "float64")
BYTES = {"B": 1, "MB": 1e6, "GB": 1e9, "TB": 1e12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
FLOPS = {"FLOPS": 1, "GFLOPS": 1e9, "TFLOPS": 1e12, "PFLOPS": 1e15}
_Form = tuple[Mapping[str, float], float, float, str]  # units, least, most, example
_COUNT: _Form = ({}, 1, MAX_DEVICES, "8xH100")
_MEMORY: _Form = (BYTES, 1e6, 1e14, "24GB or 24GiB")
_FLOPS: _Form = (FLOPS, 1e9, 1e18, "165e12 or 165TFLOPS")
_LINK: _Form = (BYTES | {f"{unit}/s": size for unit, size in BYTES.items()}, 1e6, 1e14, "32e9 or 32GB/s")


@dataclass(frozen=True)
class Hardware:
    """One kind of accelerator.

    ``memory`` is in bytes, as PyTorch reports the total of a device: the least that out-of-memory messages
    show, up to 10% below the size that vendors print. ``flops`` is the dense peak in FLOP/s by dtype, where
    the data sheet has it: of float32 without TF32, of float16 accumulated in float32, of float64 with tensor
    cores. ``link`` is in bytes/s, one direction, from a device to the others of its host together: NVLink or
    Infinity Fabric, else PCIe; bridges that join two cards do not count. ``host`` is between a device and the
    host's memory. None is not known. ``source`` is a data sheet, which has all but the memory.
    """

    name: str
    memory: int
    flops: Mapping[str, float]
    link: float | None
    host: float | None
    source: str


_ROWS: tuple[tuple[str, float, tuple[float | None, ...], float, float, str], ...] = (
    # name, GiB, TFLOP/s by DTYPES, GB/s to other devices, GB/s to the host, source
    ("V100", 31.7, (15.7, 125, None, 7.8), 150, 16, "NVIDIA V100 Tensor Core GPU (SXM2)"),
    ("V100-16GB", 15.7, (15.7, 125, None, 7.8), 150, 16, "NVIDIA V100 Tensor Core GPU (SXM2)"),
    ("T4", 14.5, (8.1, 65, None, None), 16, 16, "NVIDIA T4 Tensor Core GPU"),
    ("A10", 21.9, (31.2, 125, 125, None), 32, 32, "NVIDIA A10 Tensor Core GPU"),
    ("A10G", 21.9, (31.52, 70, 70, None), 32, 32, "NVIDIA A10G Tensor Core GPU"),
    ("A100", 79.1, (19.5, 312, 312, 19.5), 300, 32, "NVIDIA A100 Tensor Core GPU (SXM)"),
    ("A100-40GB", 39.3, (19.5, 312, 312, 19.5), 300, 32, "NVIDIA A100 Tensor Core GPU (SXM)"),
    ("L4", 21.9, (30.3, 121, 121, None), 32, 32, "NVIDIA L4 Tensor Core GPU"),
    ("L40S", 44.3, (91.6, 362, 362, None), 32, 32, "NVIDIA L40S"),
    ("RTX3090", 23.5, (35.6, 71, 71, None), 32, 32, "NVIDIA Ampere GA102 GPU Architecture"),
    ("RTX4090", 23.5, (82.6, 165.2, 165.2, None), 32, 32, "NVIDIA Ada GPU Architecture"),
    ("RTX5090", 31.3, (104.8, 209.5, 209.5, None), 64, 64, "NVIDIA RTX Blackwell GPU Architecture"),
    ("H100", 79.1, (67, 989, 989, 67), 450, 64, "NVIDIA H100 Tensor Core GPU (SXM)"),
    ("H100-PCIe", 79.1, (51, 756, 756, 51), 64, 64, "NVIDIA H100 Tensor Core GPU (PCIe)"),
    ("H200", 139.7, (67, 989, 989, 67), 450, 64, "NVIDIA H200 Tensor Core GPU (SXM)"),
    ("B200", 178.3, (75, 2250, 2250, 37), 900, 64, "NVIDIA HGX B200"),
    ("MI300X", 191.6, (163.4, 1307.4, 1307.4, 163.4), 448, 64, "AMD Instinct MI300X Accelerator"),
)  # fmt: skip
HARDWARE = {
    name: Hardware(name, int(memory * 2**30), flops, link * 1e9, host * 1e9, source)
    for name, memory, speeds, link, host, source in _ROWS
    for flops in [{dtype: each * 1e12 for dtype, each in zip(DTYPES, speeds, strict=True) if each}]
}
ALIASES = {"A100-80GB": "A100", "V100-32GB": "V100", "H100-80GB": "H100", "H100-SXM": "H100"}


def devices_of(
    text: str, memory: str | float = "", flops: str | float | None = None, link: str | float | None = None
) -> tuple[int, Hardware]:
    """How many devices, and of which kind: ``8xH100``, ``H100`` for one, ``8`` for devices with this memory.

    ``memory`` (``24GB``, ``24GiB``, bytes), ``flops`` (``165e12``, of every dtype) and ``link`` (``32e9``,
    ``32GB/s``) take the place of the table's figures. Raises ConfigError.
    """
    where = f"--devices {shown(text)}"
    # a number followed by an x or by the end, then a kind
    match = re.fullmatch(r"(?:([-+.\d][-+.\de]*) ?(?:[x×] ?|$))?(.*)", " ".join(text.split()), re.IGNORECASE)
    count = _number(where, match[1], _COUNT) if match and match[1] else 1.0
    if not count.is_integer():
        raise ConfigError(f"{where}: {count:g} is not a whole number of devices: write 8xH100")
    kind = match[2] if match else text
    if not kind and memory == "":
        example = "write a kind, as in 8xH100, or the memory, as in --devices 8 --memory 24GB"
        raise ConfigError(f"{where}: a kind of device is missing: {example}; {available(HARDWARE)}")
    hardware = _kind(kind, where) if kind else Hardware("device", 0, {}, None, None, "")
    if memory != "":
        hardware = replace(hardware, memory=round(_number("--memory", memory, _MEMORY)))
    if flops is not None:
        hardware = replace(hardware, flops=dict.fromkeys(DTYPES, _number("--flops", flops, _FLOPS)))
    if link is not None:
        hardware = replace(hardware, link=_number("--link", link, _LINK))
    return int(count), hardware


def _kind(text: str, where: str) -> Hardware:
    """The kind of this name; case, spaces and hyphens do not matter."""
    names = {_plain(name): name for name in HARDWARE} | {_plain(name): to for name, to in ALIASES.items()}
    if name := names.get(_plain(text)):
        return HARDWARE[name]
    others = "of a kind that is not listed, write number and memory: --devices 8 --memory 24GB"
    meant = did_you_mean(text.upper(), HARDWARE)
    raise ConfigError(f"{where}: unknown kind {shown(text)}: {others}; {available(HARDWARE)}{meant}")


def _plain(name: str) -> str:
    return re.sub(r"[ _-]", "", name).casefold()


def _number(where: str, value: str | float, form: _Form) -> float:
    """A number within the limits of this form, in its unit; ``Gb``, which means bits, is refused."""
    units, low, high, example = form
    match = re.fullmatch(r"(.*?) ?([a-z/]*)", " ".join(str(value).split()), re.IGNORECASE)
    text, unit = (match[1], match[2]) if match else ("", "")
    try:
        number = float(text)
    except ValueError:
        raise ConfigError(f"{where}: {shown(value)} is not a number: write {example}") from None
    sizes = {name.casefold(): size for name, size in units.items()}
    is_bits = "b" in unit and not unit.islower()
    if unit and (is_bits or unit.casefold() not in sizes):
        raise unknown("unit", unit, units, where)
    number *= sizes[unit.casefold()] if unit else 1
    if not low <= number <= high:
        raise ConfigError(f"{where}: {number:g} is not between {low:g} and {high:g}: write {example}")
    return number
