"""Every model under every strategy: laid over three devices, each computes what one device does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dpexp import loop
from dpexp.config import STRATEGY_OPTIONS, RunConfig
from dpexp.models import MODELS
from dpexp.verify import verify

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
"""By model, the submodule that ``block`` replicates and the one that ``hybrid`` keeps on the host."""

LAYOUTS = ("whole", "block", "functional", "hybrid")
OTHER_DATA = [
    ("cnn", "digits"),
    ("capsnet", "digits"),
    ("mlp", "digits"),
    ("rnn", "digits"),
    ("transformer", "digits"),
    ("rnn", "sequences:samples=40"),
    ("transformer", "sequences:samples=40"),
    ("dlrm", "clicks:samples=40"),
    ("embedding", f"text:{__file__}"),
    ("rnn", f"text:{__file__}"),
    ("transformer", f"text:{__file__}"),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are fastest on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(strategy: str, model: str, data: str) -> None:
    block, host = PARTS[model]
    options = {"block": {"block": (block,)}, "hybrid": {"host": (host,)}}.get(strategy, {})
    config = RunConfig.from_dict({"strategy": strategy, "model": model, "data": data, "virtual": 3} | options)
    prepared = loop.prepare(config)
    batch = next(prepared.batches(0))
    result = verify(prepared.model, prepared.strategy, prepared.selection.used, prepared.data, batch)
    assert result.passed, result


def test_every_model_has_its_parts_named() -> None:
    assert set(PARTS) == set(MODELS)
    assert set(LAYOUTS) <= set(STRATEGY_OPTIONS)


@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_verifies_under_every_strategy(model: str, strategy: str) -> None:
    check(strategy, model, "random")


@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize(("model", "data"), OTHER_DATA)
def test_every_source_verifies_with_the_models_that_take_it(model: str, data: str, strategy: str) -> None:
    check(strategy, model, data)
