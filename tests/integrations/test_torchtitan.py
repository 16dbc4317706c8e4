"""torchtitan's trainer with FSDP2: its loss returns a tuple, and divides by the tokens of all ranks."""

from typing import Any

import pytest
import torch
from loops import Claims, check_on_two_ranks

claims = Claims()
right, wrong = claims.right, claims.wrong


@pytest.mark.parametrize("name", claims)
def test_the_verdict_of(name: str) -> None:
    check_on_two_ranks(__name__, name)


def trained(*args: Any, **options: Any) -> Any:
    from torchtitan.tools import utils

    utils.device_type, utils.device_module = "cpu", torch.cpu  # before it is read: it knows accelerators only
    import titan

    return titan.trained(*args, **options)


right(
    tokens_of_all_ranks=trained,
    tokens_not_clipped=lambda: trained(max_norm=1e6),
    tokens_in_bfloat16=lambda: trained(precision="bfloat16"),
    tokens_in_dtensors=lambda: trained(backend="full_dtensor"),
    tokens_in_chunks=lambda: trained(is_chunked=True),
)
wrong(
    "ranks of unequal labels",
    each_rank_s_own_tokens=lambda: trained("OwnTokens"),
    each_rank_s_own_tokens_in_chunks=lambda: trained("OwnTokens", is_chunked=True),
)
wrong(
    "divided by the number of ranks once too often",
    fsdp_divides_too=lambda: trained("Averages", max_norm=1e6),
)
