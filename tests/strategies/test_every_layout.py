"""Every model under every strategy, over three devices, computes what it computes on one."""

from typing import Any

import pytest

from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.models.registry import MODELS

pytestmark = pytest.mark.usefixtures("one_thread")
PARTS = {
    "linear": ("fc", "fc"),
    "blocks": ("block2", "block1"),
    "mlp": ("layers", "head"),
    "embedding": ("linear", "embedding"),
    "cnn": ("conv2", "conv1"),
    "rnn": ("lstm", "head"),
    "capsnet": ("classes", "conv"),
    "transformer": ("encoder", "embedding"),
    "dlrm": ("top", "embedding"),
}
"""By model, the submodule that ``block`` and ``place`` name, and the one ``hybrid`` leaves on the host."""


@pytest.mark.parametrize("strategy", ["whole", "block", "functional", "hybrid", "place"])
@pytest.mark.parametrize("model", PARTS)
def test_every_model_verifies_under_every_strategy(model: str, strategy: str) -> None:
    block, host = PARTS[model]
    parts = {
        "block": {"block": (block,)},
        "hybrid": {"host": (host,)},
        "place": {"place": (f"{block}=cpu:1",)},
    }
    config: dict[str, Any] = {"strategy": strategy, "model": model, "virtual": 3}
    result = verify(prepare(RunConfig.from_dict(config | parts.get(strategy, {}))))
    assert result.passed, result.cause


def test_parts_of_every_model_are_named() -> None:
    assert set(PARTS) == set(MODELS)
