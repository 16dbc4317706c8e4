"""torchtitan's own trainer on a CPU, with a small Llama, rows of its own, and no files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from loops import rank, watch
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule
from torchtitan.components import metrics
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

VOCABULARY = 2048
Ignored = Callable[[int, int], int]
"""How many labels of each row are ignored, by micro-batch and rank."""


def no_memory() -> SimpleNamespace:
    """In place of the monitor of an accelerator's memory."""
    peak = metrics.DeviceMemStats(*[0] * 6)
    return SimpleNamespace(device_name="cpu", get_peak_stats=lambda: peak, reset_peak_stats=lambda: None)


metrics.build_device_memory_monitor = no_memory


class Rows(BaseDataLoader):
    """Batches of random ids."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        ignored: Ignored

    def __init__(self, config: Config, seq_len: int, local_batch_size: int, **_: Any) -> None:
        self.ignored, self.shape = config.ignored, (local_batch_size, seq_len)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        rng = torch.Generator().manual_seed(rank())
        for micro in range(100):
            ids = torch.randint(VOCABULARY, self.shape, generator=rng)
            labels = ids.roll(-1, 1)
            labels[:, : self.ignored(micro, rank())] = -100
            yield {"input": ids}, labels

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        pass

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return VOCABULARY


class WatchedTrainer(Trainer):
    """torchtitan's trainer, with the two lines of docs/watching.md before ``parallelize_fn``."""

    def __init__(self, config: Trainer.Config) -> None:
        parallelize = config.model_spec.parallelize_fn

        def watch_and_parallelize(model: nn.Module, **options: Any) -> nn.Module:
            inside = self.loss_fn if isinstance(self.loss_fn, ChunkedLossWrapper) else self
            self.run = watch(model, inside.loss_fn)
            inside.loss_fn = self.run.loss
            return self.laid_out(parallelize(model, **options))

        config.model_spec = replace(config.model_spec, parallelize_fn=watch_and_parallelize)
        super().__init__(config)

    def init_distributed(self) -> ParallelDims:
        """The test has made the process group."""
        return ParallelDims.from_config(self.config.parallelism, distributed.get_world_size())

    def laid_out(self, model: nn.Module) -> nn.Module:
        """The model, for gloo, which can't multiply before it adds up."""
        for each in model.modules():
            if isinstance(each, FSDPModule):
                each.set_force_sum_reduction_for_comms(True)
        return model


class OwnTokens(WatchedTrainer):
    """Each rank divides by its own number of tokens, and gradients are averaged over the ranks."""

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        with patch.object(dist_utils, "dist_sum_tensor", lambda own, mesh: own * mesh.size()):
            super().train_step(data_iterator)


class Averages(WatchedTrainer):
    """FSDP divides by the number of ranks, beside the loss."""

    def laid_out(self, model: nn.Module) -> nn.Module:
        for each in super().laid_out(model).modules():
            if isinstance(each, FSDPModule):
                each.set_gradient_divide_factor(distributed.get_world_size())
        return model


def trained(
    trainer: str = "WatchedTrainer",
    *,
    ignored: Ignored = lambda micro, rank: micro % 2 + 2 * rank,
    max_norm: float = 0.1,
    precision: str = "float32",
    backend: str = "partial_dtensor",
    is_chunked: bool = False,
) -> Any:
    """Three of torchtitan's steps, over two micro-batches of two rows on each rank."""
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:1]
    spec.model.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
    training = TrainingConfig(
        local_batch_size=2,
        global_batch_size=4 * distributed.get_world_size(),
        seq_len=8,
        max_norm=max_norm,
        mixed_precision_param=precision,
        disable_cuda_graphs=True,
    )
    config = Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(num_chunks=2) if is_chunked else CrossEntropyLoss.Config(),
        dataloader=Rows.Config(ignored=ignored),
        tokenizer=NoTokenizer.Config(),
        optimizer=default_adamw(lr=1e-3),
        parallelism=ParallelismConfig(spmd_backend=backend),
        training=training,
        debug=DebugConfig(seed=0, enable_structured_logging=False),
    )
    made = globals()[trainer](config)
    batches = made.batch_generator(made.dataloader)
    for made.step in range(1, 4):
        made.train_step(batches)
    return made.run
