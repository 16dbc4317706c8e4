"""No test leaves a watch behind: another one would see its hooks."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _every_watch_ends() -> Iterator[None]:
    yield
    assert torch.amp.GradScaler.step.__module__ == "torch.amp.grad_scaler", "this test has left a watch"
