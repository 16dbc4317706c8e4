"""Decoders that return a cache of keys and values, as those of Hugging Face do, run without it."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import dpexp


class Decoder(nn.Module):
    """Ids ``(rows, 6)`` -> ``logits`` ``(rows, 6, 11)``, and a cache, which replicas cannot join."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 11)

    def forward(self, ids: Tensor) -> dict[str, Any]:
        cache = {"past_key_values": object()} if self.config.use_cache else {}
        return {"logits": self.head(self.embedding(ids)), **cache}


def test_the_cache_of_a_decoder_inside_a_model_is_turned_off_and_one_that_is_off_is_no_news() -> None:
    model = nn.Sequential(Decoder())
    found = verification(model)
    assert found["passed"]
    assert found["note"] == "the model's config.use_cache is turned off: its cache is for generation"
    assert model[0].config.use_cache, "the user's model stays as it is"
    model[0].config.use_cache = False
    assert "use_cache" not in verification(model)["note"]


def verification(model: nn.Module) -> Any:
    ids = torch.randint(11, (10, 6), generator=torch.Generator().manual_seed(0))
    short = {"steps": 2, "warmup": 0, "phase_steps": 0, "batch_size": 5, "track": False, "quiet": True}
    return dpexp.run("whole", model=model, data=(ids, ids.roll(1)), virtual=2, **short).verification
