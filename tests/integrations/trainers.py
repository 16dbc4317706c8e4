"""What tests of Trainer and TRL's trainers have in common: tiny models, data, and training."""

from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from dpexp.integrations.transformers import WatchCallback

QUIET = {
    "report_to": [],
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
    "use_cpu": True,
    "per_device_train_batch_size": 2,
}
SIZES = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}


def llama() -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS))


class Rows(torch.utils.data.Dataset):
    """Ids (8,), and labels of which as many as ``ignored`` says of a row are ignored."""

    def __init__(self, ignored: Callable[[int], int] = lambda row: row % 4, count: int = 48) -> None:
        self.ignored, self.count = ignored, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(64, (8,), generator=torch.Generator().manual_seed(index))
        labels = ids.clone()
        labels[: self.ignored(index)] = -100
        return {"input_ids": ids, "labels": labels}


def made(
    trainer: type[Trainer] = Trainer,
    arguments: type[TrainingArguments] = TrainingArguments,
    *,
    folder: str,
    callbacks: Any = (),
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Trainer:
    """A trainer of three steps of three micro-batches; ``extra`` are for its constructor."""
    steps = {"max_steps": 3, "gradient_accumulation_steps": 3, "max_grad_norm": 0}
    given = {"train_dataset": Rows(), "callbacks": list(callbacks), **(extra or {})}
    if "model_init" not in given:
        given.setdefault("model", llama())
    return trainer(args=arguments(folder, **(QUIET | steps | options)), **given)


def trained(*kinds: Any, extra: Any = None, of_callback: Any = None, **options: Any) -> Any:
    """The watch of a trainer that has trained."""
    callback = WatchCallback(steps=3, track=False, **(of_callback or {}))
    with TemporaryDirectory() as folder:
        made(*kinds, folder=folder, callbacks=[callback], extra=extra, **options).train()
    assert callback.run is not None, callback.note
    return callback.run
