"""The frameworks compute on the CPU, and download nothing."""

import pytest


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
