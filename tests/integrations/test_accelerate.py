"""Accelerate and Transformers' Trainer on two gloo ranks; the loss is inside the model."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from tempfile import TemporaryDirectory
from typing import Any

import accelerate
import pytest
import torch
from loops import Claims, check_on_two_ranks, count, rank, watch
from torch import nn

claims = Claims()
right, wrong = claims.right, claims.wrong
Ignored = Callable[[int, int], int]
"""How many labels are ignored, by step and rank."""


@pytest.mark.parametrize("name", claims)
def test_the_verdict_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check_on_two_ranks(__name__, name)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads))


def row(seed: int, ignored: int, rows: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    ids = torch.randint(64, (*rows, 8), generator=torch.Generator().manual_seed(seed))
    labels = ids.clone()
    labels[..., :ignored] = -100
    return {"input_ids": ids, "labels": labels}


# --- Accelerate ---


def accelerated(
    ignored: Ignored, weight: Any = None, norm: float | None = None, precision: str = "no"
) -> Any:
    """The loop of Accelerate's documentation, of two steps of three micro-batches."""
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3, mixed_precision=precision)
    run = watch(model := llama(), weight=weight, clip_norm=norm)
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for step in range(6):
        with accelerator.accumulate(prepared):
            batch = row(10 * step + rank(), ignored(step, rank()), (2,))
            accelerator.backward(prepared(**batch).loss)
            if norm and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()
    return run


def shifted(labels: torch.Tensor, **_: Any) -> int:
    return count(labels[:, 1:])


def equal(step: int, rank: int) -> int:
    return 2


def unequal(step: int, rank: int) -> int:
    return step % 3 + 2 * rank


right(
    accelerate_clipped=lambda: accelerated(equal, norm=0.1),
    accelerate_in_bfloat16=lambda: accelerated(equal, precision="bf16"),
)
wrong(
    "micro-batches of unequal labels", "averaged as if equal",
    accelerate_with_unequal_labels=lambda: accelerated(unequal),
)  # fmt: skip
wrong(
    "micro-batches of unequal weights are averaged as if equal",
    accelerate_with_unequal_labels_and_a_stated_weight=lambda: accelerated(unequal, shifted),
)

# --- Trainer ---


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return row(index, index % 4)


def trained(weight: Any = None) -> Any:
    """Trainer divides the sum over labels of each call by their number in the window."""
    from transformers import Trainer, TrainingArguments

    run = watch(model := llama(), weight=weight, clip_norm=0.5)
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "max_steps": 3}
    with TemporaryDirectory() as folder, redirect_stdout(sys.stderr):  # what ranks print is JSON
        arguments = TrainingArguments(folder, use_cpu=True, max_grad_norm=0.5, **sizes, **quiet)
        Trainer(model, arguments, train_dataset=Rows()).train()
    return run


right(
    trainer=trained,
    trainer_with_a_stated_sum=lambda: trained("sum"),
    trainer_without_weights=lambda: trained(False),
)
