"""Timer: phases add up and nest; without recording they cost nothing."""

import time

import pytest
import torch

from dpexp import devices
from dpexp.timing import Timer


def test_a_timer_that_does_not_record_has_no_samples() -> None:
    timer = Timer()
    with timer.phase("forward"), timer.replica("parallel_apply", 0, devices.HOST):
        pass
    assert (timer.phases, timer.timeline) == ({}, [])
    assert timer.phase("forward") is timer.phase("backward")  # one shared context: free


def test_a_phase_has_one_sample_a_step_even_if_it_repeats() -> None:
    timer = Timer()
    for _ in range(3):
        with timer.step():
            for _ in range(2):
                with timer.phase("scatter"):
                    time.sleep(0.001)
    assert len(timer.phases["scatter"]) == 3
    assert min(timer.phases["scatter"]) >= 2.0
    assert [row["phase"] for row in timer.timeline] == ["scatter", "scatter", "step"] * 3


def test_the_timeline_starts_at_zero_and_is_inside_its_step() -> None:
    timer = Timer()
    with timer.step(), timer.phase("forward"), timer.replica("parallel_apply", 1, torch.device("cpu", 1)):
        time.sleep(0.001)
    rows = {row["phase"]: row for row in timer.timeline}
    step, forward, replica = rows["step"], rows["forward"], rows["parallel_apply"]
    assert 0 <= step["start_us"] <= forward["start_us"] <= replica["start_us"]
    assert replica["end_us"] <= forward["end_us"] <= step["end_us"]
    assert (replica["replica"], replica["device"]) == (1, "cpu:1")
    assert "parallel_apply" not in timer.phases  # a replica's part is not a phase of the step


def test_a_step_that_raises_stops_the_recording() -> None:
    timer = Timer()
    with pytest.raises(ValueError, match="inside"), timer.step():
        raise ValueError("inside")
    with timer.phase("forward"):
        pass
    assert timer.phases == {}


@pytest.mark.gpu
def test_replicas_on_an_accelerator_are_timed_by_events_on_the_host_clock() -> None:
    device = devices.accelerators()[0]
    timer = Timer([device])
    matrix = torch.randn(2048, 2048, device=device)
    for _ in range(2):
        with timer.step(), timer.replica("parallel_apply", 0, device):
            for _ in range(20):
                matrix = torch.tanh(matrix @ matrix)
    replica, step = timer.timeline[-1], timer.timeline[-2]
    assert (replica["phase"], step["phase"]) == ("parallel_apply", "step")
    assert step["start_us"] <= replica["start_us"] < replica["end_us"] <= step["end_us"] + 50
