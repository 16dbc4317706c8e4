"""Decoders that return a cache of keys and values, as those of Hugging Face do, run without it."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dpexp

LAYOUTS: dict[str, dict[str, Any]] = {"whole": {}, "place": {"place": ("layers.0=cpu:1",)}}


class Cache:
    """Keys of each layer, to which every call adds."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}

    def update(self, layer: int, keys: Tensor) -> Tensor:
        before = self.keys.get(layer)
        self.keys[layer] = keys if before is None else torch.cat([before, keys], dim=1)
        return self.keys[layer]


class Attention(nn.Module):
    """Attention whose queries, keys and values are the inputs."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.linear = number, nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        keys = x if cache is None else cache.update(self.number, x)
        outputs: Tensor = self.linear((x @ keys.transpose(1, 2)).softmax(-1) @ keys)
        return outputs


class Decoder(nn.Module):
    """Ids ``(rows, 6)`` -> ``logits`` of the next ids ``(rows, 6, 11)``, and a cache if the config has it."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.embedding = nn.Embedding(11, 4)
        self.layers = nn.ModuleList(map(Attention, range(2)))
        self.head = nn.Linear(4, 11)

    def forward(self, ids: Tensor) -> dict[str, Any]:
        cache, x = Cache() if self.config.use_cache else None, self.embedding(ids)
        for layer in self.layers:
            x = layer(x, cache)
        outputs: dict[str, Any] = OrderedDict(logits=self.head(x))
        if cache is not None:
            outputs["past_key_values"] = cache
        return outputs


@pytest.mark.parametrize("strategy", LAYOUTS)
def test_a_decoder_that_returns_a_cache_runs_without_it(strategy: str) -> None:
    model = Decoder()
    found = verification(model, strategy, **LAYOUTS[strategy])
    assert found["passed"]
    assert found["note"] == "the model's config.use_cache is turned off: its cache is for generation"
    assert model.config.use_cache, "the user's model stays as it is"


def test_the_cache_of_a_decoder_inside_a_model_is_turned_off_too_and_one_that_is_off_is_no_news() -> None:
    model = nn.Sequential(Decoder())
    assert "use_cache is turned off" in verification(model, "whole")["note"]
    model[0].config.use_cache = False
    assert "use_cache" not in verification(model, "whole")["note"]


def verification(model: nn.Module, strategy: str, **options: Any) -> Any:
    ids = torch.randint(11, (10, 6), generator=torch.Generator().manual_seed(0))
    short = {"steps": 2, "warmup": 0, "phase_steps": 0, "batch_size": 5, "track": False, "quiet": True}
    run = dpexp.run(strategy, model=model, data=(ids, ids.roll(1)), virtual=2, **options | short)
    return run.verification
