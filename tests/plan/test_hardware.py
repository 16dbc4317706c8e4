"""Accelerators: the table is plausible, and devices are named, counted and described."""

import dataclasses
import itertools
import subprocess
import sys

import pytest

from dpexp.config.errors import ConfigError
from dpexp.plan.hardware import ALIASES, DTYPES, HARDWARE, Hardware, devices_of


@pytest.mark.parametrize("hardware", HARDWARE.values(), ids=HARDWARE)
def test_the_table_is_plausible(hardware: Hardware) -> None:
    assert HARDWARE[hardware.name] is hardware
    assert 8e9 < hardware.memory < 300e9
    assert set(hardware.flops) <= set(DTYPES)
    assert 1e12 < hardware.flops["float32"] < hardware.flops["float16"] < 5e15
    assert hardware.flops.get("bfloat16", hardware.flops["float16"]) == hardware.flops["float16"]
    assert hardware.flops.get("float64", 0) <= hardware.flops["float32"]
    assert hardware.link is not None
    assert hardware.host is not None
    assert 1e12 > hardware.link >= hardware.host >= 16e9
    assert hardware.source.startswith(("NVIDIA ", "AMD "))


def test_later_generations_are_faster_and_larger() -> None:
    generations = [HARDWARE[name] for name in ("V100", "A100", "H100", "H200", "B200")]
    for earlier, later in itertools.pairwise(generations):
        assert earlier.memory <= later.memory
        assert earlier.flops["float16"] <= later.flops["float16"]
        assert (earlier.link or 0) <= (later.link or 0)


def test_peaks_are_dense_and_memory_is_what_pytorch_reports() -> None:
    assert HARDWARE["H100"].flops["bfloat16"] == 989e12  # and not 1979e12, with sparsity
    assert HARDWARE["H100"].flops["float32"] == 67e12  # and not 495e12, of TF32
    assert HARDWARE["H100"].memory == int(79.1 * 2**30)
    assert "bfloat16" not in HARDWARE["V100"].flops


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("8xH100", 8, "H100"),
        ("H100", 1, "H100"),
        ("8 x h100", 8, "H100"),
        ("  8X\tH100 ", 8, "H100"),
        ("8×H100", 8, "H100"),
        ("16xh100-pcie", 16, "H100-PCIe"),
        ("4xRTX 4090", 4, "RTX4090"),
        ("rtx-4090", 1, "RTX4090"),
        ("a100 40gb", 1, "A100-40GB"),
        ("2xA100-80GB", 2, "A100"),
        ("100000xB200", 100_000, "B200"),
    ],
)
def test_count_and_kind(text: str, count: int, name: str) -> None:
    assert devices_of(text) == (count, HARDWARE[name])


def test_each_name_names_its_hardware() -> None:
    for name, hardware in HARDWARE.items():
        assert devices_of(f"3x{name.lower()}") == (3, hardware)
    for alias, name in ALIASES.items():
        assert devices_of(alias) == (1, HARDWARE[name])


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        ("24GB", 24 * 10**9),
        ("24 gb", 24 * 10**9),
        ("24GiB", 24 * 2**30),
        ("512MB", 512 * 10**6),
        ("512MiB", 512 * 2**20),
        ("1.5TB", 1_500_000_000_000),
        ("24e9", 24 * 10**9),
        ("24000000000", 24 * 10**9),
        ("24000000000B", 24 * 10**9),
        (24e9, 24 * 10**9),
    ],
)
def test_devices_of_a_memory(memory: str | float, size: int) -> None:
    assert devices_of("8", memory) == (8, Hardware("device", size, {}, None, None, ""))


@pytest.mark.parametrize("flops", ["165e12", 165e12, "165TFLOPS", "165 tflops", "0.165 PFLOPS"])
@pytest.mark.parametrize("link", ["32e9", 32e9, "32GB/s", "32 GB", "32000 mb/s"])
def test_own_figures_take_the_place_of_the_table(flops: str | float, link: str | float) -> None:
    own = {"memory": 24 * 10**9, "flops": dict.fromkeys(DTYPES, 165e12), "link": 32e9}
    assert devices_of("8xH100", "24GB", flops, link) == (8, dataclasses.replace(HARDWARE["H100"], **own))
    assert devices_of("2", "24GB", flops, link)[1] == Hardware(name="device", host=None, source="", **own)


def test_figures_that_are_not_given_stay() -> None:
    _, hardware = devices_of("H100", link="100GB/s")
    assert hardware == dataclasses.replace(HARDWARE["H100"], link=100e9)
    assert HARDWARE["H100"].link == 450e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8xH10", "--devices '8xH10': unknown kind 'H10': of a kind that is not listed, write number and "
                  "memory: --devices 8 --memory 24GB; there are V100, "),
        ("8xH10", ": did you mean 'H100'?"),
        ("2xrtx409", ": did you mean 'RTX4090'?"),
        ("8xGaudi", "unknown kind 'Gaudi'"),
        ("8H100", "unknown kind '8H100'"),
        ("2x8xH100", "unknown kind '8xH100'"),
        ("xH100", "unknown kind 'xH100'"),
        ("nanxH100", "unknown kind 'nanxH100'"),
        ("0xH100", "--devices '0xH100': 0 is not between 1 and 100000: write 8xH100"),
        ("-8xH100", "-8 is not between 1 and 100000"),
        ("100001xH100", "100001 is not between 1 and 100000"),
        ("9" * 5000 + "xH100", "inf is not between 1 and 100000"),
        ("1e999xH100", "inf is not between 1 and 100000"),
        ("1.5xH100", "--devices '1.5xH100': 1.5 is not a whole number of devices: write 8xH100"),
        ("1-2xH100", "--devices '1-2xH100': '1-2' is not a number: write 8xH100"),
        ("8", "--devices '8': a kind of device is missing: write a kind, as in 8xH100, or the memory, as in "
              "--devices 8 --memory 24GB; there are V100, "),
        ("8x", "a kind of device is missing"),
        ("", "a kind of device is missing"),
    ],
)  # fmt: skip
def test_devices_that_cannot_be_planned(text: str, message: str) -> None:
    assert message in error_of(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": "24"}, "--memory: 24 is not between 1e+06 and 1e+14: write 24GB or 24GiB"),
        ({"memory": "-24GB"}, "--memory: -2.4e+10 is not between"),
        ({"memory": "0GB"}, "--memory: 0 is not between"),
        ({"memory": "900TB"}, "--memory: 9e+14 is not between"),
        ({"memory": "1e999GB"}, "--memory: inf is not between"),
        ({"memory": "nan"}, "--memory: 'nan' is not a number: write 24GB or 24GiB"),
        ({"memory": float("nan")}, "--memory: nan is not a number"),
        ({"memory": "nanGB"}, "--memory: 'nanGB' is not a number"),
        ({"memory": "much"}, "--memory: 'much' is not a number"),
        ({"memory": "24GB or so"}, "--memory: '24GB or so' is not a number"),
        ({"memory": "24G"}, "--memory: unknown unit 'G'; there are B, GB, GiB, MB, MiB, TB, TiB"),
        ({"memory": "24Gb"}, "--memory: unknown unit 'Gb'; there are B, GB"),
        ({"memory": "24GB/s"}, "--memory: unknown unit 'GB/s'"),
        ({"flops": "165"}, "--flops: 165 is not between 1e+09 and 1e+18: write 165e12 or 165TFLOPS"),
        ({"flops": -165e12}, "--flops: -1.65e+14 is not between"),
        ({"flops": float("inf")}, "--flops: inf is not a number"),
        ({"flops": ""}, "--flops: '' is not a number"),
        ({"flops": "165TFLOP"}, ": did you mean 'TFLOPS'?"),
        ({"link": "32"}, "--link: 32 is not between 1e+06 and 1e+14: write 32e9 or 32GB/s"),
        ({"link": "400Gb/s"}, "--link: unknown unit 'Gb/s'"),
        ({"link": "400Gbps"}, "--link: unknown unit 'Gbps'"),
    ],
)
def test_figures_that_cannot_be_meant(given: dict[str, str | float], message: str) -> None:
    assert message in error_of("8xH100", **given)


def test_an_unknown_kind_is_refused_with_its_memory_too() -> None:
    assert "did you mean 'H100'?" in error_of("8xH1000", memory="80GB")


def error_of(text: str, **given: str | float) -> str:
    with pytest.raises(ConfigError) as caught:
        devices_of(text, **given)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_table_needs_no_torch() -> None:
    code = "import sys, dpexp.plan.hardware; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
