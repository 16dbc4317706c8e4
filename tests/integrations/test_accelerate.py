"""Accelerate, watched by the line before ``prepare``: micro-batches, clipping, and a mean over tokens."""

import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from tempfile import TemporaryDirectory
from typing import Any

import accelerate
import pytest
import torch
from loops import Claims, check_on_two_ranks, count, rank, watch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional

claims, alone = Claims(), Claims()
right, wrong = claims.right, claims.wrong
Ignored = Callable[[int, int], int]
"""How many labels are ignored, by step and rank."""


@pytest.mark.parametrize("name", claims)
def test_the_verdict_on_two_ranks_of(name: str) -> None:
    check_on_two_ranks(__name__, name)


@pytest.mark.parametrize("name", alone)
def test_the_verdict_on_one_process_of(name: str) -> None:
    alone[name].check(alone[name].ends())


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


def equal(step: int, rank: int) -> int:
    return 2


def unequal(step: int, rank: int) -> int:
    return step % 3 + 2 * rank


def prepared(model: nn.Module, plugin: Any = None, **options: Any) -> Any:
    """The accelerator, the model and its optimizer. ``plugin`` is that of FSDP2."""
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, **options)
    if plugin is not None:  # which Accelerate takes with GPUs only
        accelerator.state.distributed_type = accelerate.DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    assert isinstance(model, FSDPModule) == (plugin is not None)
    return accelerator, model, optimizer


# --- accumulate(): the mean over micro-batches ---


def accumulated(
    ignored: Ignored = equal,
    micro: int = 3,
    *,
    weight: Any = None,
    accumulates: bool = True,
    clips: Callable[[Any], bool] = lambda accelerator: False,
    **options: Any,
) -> Any:
    """The loop of Accelerate's documentation, over six batches. ``clips`` says after which of them."""
    run = watch(model := llama(), weight=weight)
    accelerator, model, optimizer = prepared(model, gradient_accumulation_steps=micro, **options)
    for step in range(6):
        with accelerator.accumulate(model) if accumulates else nullcontext():
            batch = row(10 * step + rank(), ignored(step, rank()), (2,))
            accelerator.backward(model(**batch).loss)
            if clips(accelerator):
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return run


def shifted(labels: torch.Tensor, **_: Any) -> int:
    return count(labels[:, 1:])


def at_a_step(accelerator: Any) -> bool:
    return bool(accelerator.sync_gradients)


def sharded() -> Any:
    """By FSDP2, layer by layer."""
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    )
    return accumulated(clips=at_a_step, plugin=plugin)


right(
    clipped=lambda: accumulated(clips=at_a_step),
    clipped_and_sharded=sharded,
    in_bfloat16=lambda: accumulated(mixed_precision="bf16"),
)
wrong(
    "micro-batches of unequal labels", "averaged as if equal",
    unequal_labels=lambda: accumulated(unequal),
)  # fmt: skip
wrong(
    "micro-batches of unequal weights are averaged as if equal",
    unequal_labels_and_a_stated_weight=lambda: accumulated(unequal, weight=shifted),
)
wrong(
    "1 micro-batch", "divided by 2",
    accumulate_forgotten=lambda: accumulated(micro=2, accumulates=False),
)  # fmt: skip
wrong("clipped", "micro-batch", clipped_after_each=lambda: accumulated(clips=lambda accelerator: True))
alone.right(accumulated_alone=lambda: accumulated(clips=at_a_step))
alone.wrong(
    "1 micro-batch", "divided by 2",
    accumulate_forgotten_alone=lambda: accumulated(micro=2, accumulates=False),
)  # fmt: skip


# --- by tokens: a sum over labels, divided by their number in all micro-batches of all ranks ---


def summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def by_tokens(
    is_inside: bool = False, gathers: bool = True, times_ranks: bool = True, norm: float | None = None
) -> Any:
    """The loop of Accelerate's guide to samples of variable size, of three steps of two micro-batches.

    The model divides by the number of labels itself if ``is_inside``.
    """
    run = watch(model := llama(), None if is_inside else summed)
    accelerator, model, optimizer = prepared(model, gradient_accumulation_steps=2)
    for step in range(3):
        batches = [row(20 * step + 2 * each + rank(), unequal(each, rank()), (2,)) for each in range(2)]
        items = torch.tensor(sum(shifted(**each) for each in batches))
        items = (accelerator.gather(items).sum() if gathers else items).item()
        for batch in batches:
            with accelerator.no_sync(model) if batch is not batches[-1] else nullcontext():
                if is_inside:
                    loss = model(**batch, num_items_in_batch=items).loss
                else:
                    loss = run.loss(model(batch["input_ids"]).logits[:, :-1], batch["labels"][:, 1:]) / items
                loss = loss * accelerator.gradient_accumulation_steps
                accelerator.backward(loss * accelerator.num_processes if times_ranks else loss)
        if norm is not None:
            accelerator.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        optimizer.zero_grad()
    return run


right(
    tokens_of_all_ranks=by_tokens,
    tokens_of_all_ranks_clipped=lambda: by_tokens(norm=0.1),
    tokens_of_all_ranks_inside=lambda: by_tokens(is_inside=True),
)
wrong(
    "ranks of unequal labels",
    each_rank_s_own_tokens=lambda: by_tokens(gathers=False, times_ranks=False),
    each_rank_s_own_tokens_inside=lambda: by_tokens(True, gathers=False, times_ranks=False),
)
wrong(
    "divided by the number of ranks once too often",
    not_times_the_ranks=lambda: by_tokens(is_inside=True, times_ranks=False),
)
alone.right(
    tokens_alone=by_tokens,
    tokens_alone_inside=lambda: by_tokens(is_inside=True, norm=0.1),
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

    run = watch(model := llama(), weight=weight)
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
