"""Devices: labels, virtual devices, the devices of threads and modules, moving."""

import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from helpers.command_lines import python
from helpers.engine_runs import recorded
from torch import nn

from dpexp import devices
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.distributed.devices import DeviceRequest, DeviceSelection
from dpexp.distributed.world import World


def test_virtual_devices_have_labels() -> None:
    assert [devices.label(device) for device in devices.virtual(3)] == ["cpu:0", "cpu:1", "cpu:2"]
    assert devices.label(devices.HOST) == "cpu"
    assert devices.label(devices.virtual(128)[-1]) == "cpu:127"
    with pytest.raises(ConfigError, match="129 devices or ranks on the CPU: there are at most 128"):
        devices.virtual(129)
    assert devices.is_virtual(torch.device("cpu", 0))
    assert not devices.is_virtual(devices.HOST)
    assert not devices.is_virtual(torch.device("cuda", 0))
    assert devices.physical(torch.device("cpu", 3)) == devices.HOST
    assert devices.physical(torch.device("cuda", 1)) == torch.device("cuda", 1)


def request(
    strategy: str, devices: str = "auto", virtual: int | None = None, **planned: bool
) -> DeviceRequest:
    return DeviceRequest(devices, virtual, RunConfig(strategy).options, **planned)


@pytest.mark.parametrize(
    ("strategy", "count"),
    [("single", 0), ("whole", 2), ("block", 2), ("functional", 2), ("place", 2), ("hybrid", 1)],
)
def test_auto_without_an_accelerator_emulates_some(
    strategy: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    selection = request(strategy).select()
    assert selection == DeviceSelection(("auto",), tuple(devices.virtual(count)))


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ("cuda:47", ["--devices 'cuda:47'", "this machine has", "--virtual"]),
        ("cuda:256", ["--devices 'cuda:256'", "this machine has"]),
        ("cpu:1", ["--devices 'cpu:1'", "--virtual"]),
    ],
)
def test_missing_devices_are_refused_and_present_ones_listed(requested: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        request("whole", requested).select()
    for word in words:
        assert word in str(caught.value)


def test_a_number_that_pytorch_would_wrap_is_not_planned() -> None:
    with pytest.raises(ConfigError, match=r"'cuda:256': .* on up to 128 accelerators without them"):
        request("whole", "cuda:0,cuda:256", planned=True).select()
    planned = request("whole", "cuda:0,cuda:127", planned=True).select()
    assert planned.used == (torch.device("cuda", 0), torch.device("cuda", 127))


@pytest.mark.parametrize(
    ("strategy", "devices", "message"),
    [
        ("ddp", "3", "asks for 3 ranks per host and torchrun started 2 on this one"),
        ("single", "auto", "single is one process, and this is rank 1 of 2"),
    ],
)
def test_options_that_the_world_of_a_rank_contradicts_are_refused(
    strategy: str, devices: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        request(strategy, devices).of_rank(World(1, 2, 1, 2))


def test_a_strategy_of_one_device_uses_the_first_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr("dpexp.distributed.devices.accelerators", lambda: two)
    assert request("single").of_rank(None).used == (two[0],)
    assert request("whole").of_rank(None).used == tuple(two)


def test_the_current_device_nests_and_belongs_to_its_thread() -> None:
    first, second = devices.virtual(2)
    in_thread = []
    with devices.running_on(first, 0):
        thread = threading.Thread(target=lambda: in_thread.append(devices.current_device()))
        thread.start()
        thread.join()
        with suppress(ValueError), devices.running_on(second, 1):
            assert devices.current_device() == (second, 1)
            raise ValueError("inside")
        assert devices.current_device() == (first, 0)
    assert devices.current_device() == (None, None)
    assert in_thread == [(None, None)]


def test_place_labels_every_submodule() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    assert devices.placed_on(model[1][0]) == devices.HOST
    assert devices.place(model, torch.device("cpu", 3)) is model
    assert {devices.placed_on(part) for part in model.modules()} == {torch.device("cpu", 3)}


def test_a_packed_sequence_is_moved_and_what_is_there_stays() -> None:
    tensor = torch.ones(2)
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 1), torch.tensor([3, 1]), batch_first=True)
    same, moved = devices.move([tensor, packed], torch.device("cpu", 1))
    assert same is tensor
    assert isinstance(moved, nn.utils.rnn.PackedSequence)


def test_the_host_has_a_peak_of_memory_and_virtual_devices_share_it() -> None:
    peak = devices.peak_memory(devices.virtual(2))
    assert list(peak) == ["cpu"]
    assert peak["cpu"] > 10_000_000


@pytest.mark.gpu
def test_a_gpu_has_its_own_peak() -> None:
    device = devices.accelerators()[0]
    devices.reset_peak_memory([device])
    tensor = torch.ones(1 << 20, device=device)
    devices.synchronize([device])
    assert devices.peak_memory([device])[devices.label(device)] >= tensor.numel() * 4


PRECISION = """
from dpexp.devices import without_tf32

def read(where):
    try:
        return eval(where)
    except RuntimeError:
        return "mixed"

places = ("cudnn.conv", "cudnn.rnn", "cuda.matmul", "mkldnn.matmul")
new = [f"torch.backends.{each}.fp32_precision" for each in places]
old = ["torch.backends.cudnn.allow_tf32", "torch.backends.cuda.matmul.allow_tf32"]
every = [*new, *old, "torch.get_float32_matmul_precision()"]
before = list(map(read, every))
with without_tf32():
    assert {"tf32", "bf16", True, "mixed"}.isdisjoint(map(read, every)), list(map(read, every))
assert list(map(read, every)) == before
"""


@pytest.mark.parametrize(
    "chosen",
    [
        "torch.set_float32_matmul_precision('high')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    ],
)
def test_without_tf32_whoever_chose_it(chosen: str) -> None:
    done = python("-c", f"import torch; {chosen}\n{PRECISION}")
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_verified_steps_on_a_gpu_are_no_tf32_ones(dpexp_home: Path) -> None:
    config = RunConfig("whole", devices="cuda:0,cuda:0", model="cnn", data="digits", steps=2, warmup=4)
    found = recorded(dpexp_home, config).verification["first_steps"]
    assert (found["passed"], found["tolerance"] <= 1e-5) == (True, True)
