"""Lightning's trainer on two gloo ranks: DDP, and what ModelParallelStrategy lays out."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from lightning_modules import Classifier, Manual, Module, Normalized, fit_two, of, tokens
from loops import Claims, check_on_two_ranks
from test_lightning import Adversarial, Unfreezing

claims = Claims()
right, wrong, not_comparable = claims.right, claims.wrong, claims.not_comparable


@pytest.mark.parametrize("name", claims)
def test_the_verdict_of(name: str) -> None:
    check_on_two_ranks(__name__, name)


# --- DDP ---


class NoSync(Manual):
    """Micro-batches that are not synchronized: all but the last one, or every one."""

    micro, divisor, never = 2, 2, False

    def manual_backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        wrapper: Any = self.trainer.strategy.model
        is_last = self.trainer.fit_loop.batch_idx % self.micro == self.micro - 1
        with nullcontext() if is_last and not self.never else wrapper.no_sync():
            super().manual_backward(loss, *args, **kwargs)


class Gathering(Module):
    """It minimizes the mean of the losses of all ranks."""

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.all_gather(super().step(inputs, targets), sync_grads=True).mean()


class Reduced(Classifier):
    """It returns the loss as ``self.log`` with ``sync_dist`` shows it."""

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.trainer.strategy.reduce(super().step(inputs, targets) * 1, reduce_op="mean")


class Besides(Module):
    """It calls the module outside of DDP, before the optimizer steps."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        rng = torch.Generator().manual_seed(self.global_rank)
        self(torch.randn(4, 8, generator=rng)).square().mean().backward()


static = DDPStrategy(static_graph=True, gradient_as_bucket_view=True)
right(
    ddp=lambda: fit_two(Module(), validates=True),
    module_of_pytorch=lambda: fit_two(Classifier(), data=tokens()),
    accumulation=lambda: fit_two(of(Module, coefficient=0.7), accumulate_grad_batches=3),
    clipping=lambda: fit_two(Module(), rows=3, accumulate_grad_batches=2, gradient_clip_val=0.1),
    bfloat16_by_autocast=lambda: fit_two(Classifier(), data=tokens(), precision="bf16-mixed"),
    batch_norm_and_dropout=lambda: fit_two(Normalized(), rows=3, accumulate_grad_batches=2),
    unused_parameters=lambda: fit_two(Module(), strategy="ddp_find_unused_parameters_true"),
    static_graph=lambda: fit_two(Module(), strategy=static),
    manual=lambda: fit_two(Manual()),
    manual_without_synchronization=lambda: fit_two(of(NoSync, norm=0.1), rows=3),
    adversarial=lambda: fit_two(Adversarial(), strategy="ddp_find_unused_parameters_true"),
    losses_of_all_ranks=lambda: fit_two(Gathering()),
)
right("equal rows", without_a_sampler=lambda: fit_two(Module(), use_distributed_sampler=False))

unequal = lambda: tokens(lambda row: 5 * (row % 2))  # noqa: E731
wrong("not synchronized", never_synchronized=lambda: fit_two(of(NoSync, never=True)))
wrong("ranks of unequal labels", unequal_labels=lambda: fit_two(Classifier(), data=unequal()))
wrong("number of ranks once too often", reduced=lambda: fit_two(Reduced(), "criterion", data=tokens()))
not_comparable("ranks", "loss=", times_the_ranks=lambda: fit_two(of(Module, coefficient=2)))
wrong("zero_grad is missing", without_zero_grad=lambda: fit_two(of(Manual, zeroes=False)))
wrong(
    "not synchronized", "made trainable after the wrapper",
    unfrozen=lambda: fit_two(Module(), callbacks=[Unfreezing()], rows=6, max_epochs=2),
)  # fmt: skip
wrong("so ranks differ", besides=lambda: fit_two(Besides()))

# --- ModelParallelStrategy ---


class Sharded(Module):
    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard

        for part in (self.net[0], self.net[2], self.net):
            fully_shard(part, mesh=self.device_mesh["data_parallel"])


class Split(Module):
    def configure_model(self) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(self.net, self.device_mesh["tensor_parallel"], plan)


right(
    fsdp2=lambda: fit_two(
        Sharded(), strategy=ModelParallelStrategy(2, 1), accumulate_grad_batches=3, gradient_clip_val=0.1
    ),
    tensor_parallel=lambda: fit_two(Split(), strategy=ModelParallelStrategy(1, 2)),
)
