"""FLOPs of attention: closed forms of a transformer, and the same figure whichever kernel the CPU chooses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import recorded
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import flop_registry

from dpexp.config.run_config import RunConfig
from dpexp.measurement.flops import OF_ATTENTION, CountFlops, aten

ROWS, LENGTH, DIM, HEADS, DEPTH, IN, OUT = 6, 10, 16, 4, 2, 8, 4
MODEL = f"transformer:in={IN},length={LENGTH},dim={DIM},heads={HEADS},depth={DEPTH},out={OUT}"
STEPS = ROWS * LENGTH
SCORES = 2 * STEPS * LENGTH * DIM
"""A product with all scores: those of queries and keys, or of probabilities and values."""
LINEAR = DEPTH * 2 * STEPS * DIM * (4 * DIM + 2 * 4 * DIM) + 2 * STEPS * DIM * OUT
"""Projections and feed-forward of the layers, and the head at each step."""
EMBEDDING = 2 * STEPS * IN * DIM


def test_a_training_step_of_a_transformer_has_the_flops_of_its_closed_form(dpexp_home: Path) -> None:
    """Backward has two products for each linear one, but one for the first, and five with scores for two."""
    short: dict[str, Any] = {"steps": 1, "warmup": 0, "phase_steps": 1, "check": False}
    found = {}
    for strategy, devices in (("single", {"devices": "cpu"}), ("whole", {"virtual": 2})):
        config = RunConfig(
            strategy, model=MODEL, data="sequences:samples=6,length=10", batch_size=ROWS, **devices, **short
        )
        found[strategy] = recorded(dpexp_home, config, strategy).work
    assert found["single"]["flops"] == {
        "forward": EMBEDDING + LINEAR + DEPTH * 2 * SCORES,
        "backward": EMBEDDING + 2 * LINEAR + DEPTH * 5 * SCORES,
    }
    assert found["whole"]["flops"] == found["single"]["flops"]


def counted(compute: Callable[[], torch.Tensor]) -> tuple[int, int]:
    """The FLOPs of forward and of backward."""
    with CountFlops() as count:
        output = compute()
        forward = count.total
        if output.requires_grad:
            output.sum().backward()
    return forward, count.total - forward


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()},
    "bias": {"attn_mask": torch.zeros(LENGTH, LENGTH)},
    "trained bias": {"attn_mask": torch.zeros(LENGTH, LENGTH, requires_grad=True)},
    "dropout": {"dropout_p": 0.5},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_fused", [False, True])
def test_every_kernel_has_the_same_forward(is_fused: bool, call: str) -> None:
    """The one of plain products keeps the scores for backward; the fused one computes them again."""
    options = CALLS[call]
    of_keys = HEADS // 2 if "enable_gqa" in options else HEADS
    query, key, value = (
        torch.randn(ROWS, heads, LENGTH, DIM // HEADS, requires_grad=True)
        for heads in (HEADS, of_keys, of_keys)
    )
    with sdpa_kernel([SDPBackend.MATH, *[SDPBackend.FLASH_ATTENTION] * is_fused]):
        flops = counted(lambda: scaled_dot_product_attention(query, key, value, **options))
    computes_again = is_fused and call not in ("dropout", "trained bias")
    assert flops == (2 * SCORES, (5 if computes_again else 4) * SCORES)


def test_the_formulas_are_those_that_pytorch_has_for_accelerators() -> None:
    """Also where keys are more than queries, and values narrower; torch 2.15 has those of the CPU too."""
    query, key, value = torch.ones(2, 3, 5, 8), torch.ones(2, 3, 7, 8), torch.ones(2, 3, 7, 4)
    gradient = torch.ones(2, 3, 5, 4)
    for name, arguments in (("", (query, key, value)), ("_backward", (gradient, query, key, value))):
        theirs = flop_registry[getattr(aten, f"_scaled_dot_product_flash_attention{name}")]
        ours = OF_ATTENTION[getattr(aten, f"_scaled_dot_product_flash_attention_for_cpu{name}")]
        assert ours(*arguments) == theirs(*arguments, out_val=gradient) > 0
