"""A plan beside what a CUDA device allocates."""

from pathlib import Path

import pytest
import torch
from sized_models import CASES

import dpexp

FILE = Path(__file__).with_name("sized_models.py")


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["single", "fsdp"])
@pytest.mark.parametrize("model", CASES)
def test_a_plan_is_what_a_device_allocates(model: str, strategy: str, dpexp_home: Path) -> None:
    names = {"model": f"{FILE}:{model}", "data": f"{FILE}:{CASES[model]}", "optimizer": "adamw"}
    rows = 8192 if model == "wide" else 2048 if model == "Table" else 64 if model == "convolutional" else 16
    options = {"check": False, "track": False, "warmup": 2, "steps": 3, "phase_steps": 0, "quiet": True}
    record = dpexp.run(strategy, devices="cuda:0", batch_size=rows, **names, **options)
    (planned,) = dpexp.plan(layouts=(strategy,), devices="1", memory="80GB", batch_size=rows, **names)
    allocated = max(peak for device, peak in record.memory.items() if device != "cpu")
    assert torch.cuda.is_available()
    assert planned["peak_bytes"] == pytest.approx(allocated, rel=0.1)
