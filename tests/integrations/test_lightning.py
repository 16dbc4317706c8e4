"""Lightning's trainer in one process: the callback is the only line, and its verdict is true."""

from typing import Any

import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning_modules import Classifier, Manual, Module, Normalized, fit, numbers, of, tokens
from loops import Claims
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("default")  # Lightning warns of so little data
claims = Claims()
right, wrong, not_comparable = claims.right, claims.wrong, claims.not_comparable


@pytest.mark.parametrize("name", claims)
def test_the_verdict_of(name: str) -> None:
    claims[name].check(claims[name].ends())


# --- losses ---


class Huber(nn.Module):
    """A loss that PyTorch does not have."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets).square() + 1).sqrt().mean()


def absolute(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).abs().mean()


class WithHuber(Module):
    def __init__(self) -> None:
        super().__init__()
        self.criterion = Huber()

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.criterion(self(inputs), targets)


class WithMethod(Module):
    def compute_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return absolute(outputs, targets)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.compute_loss(self(inputs), targets)


class WithFunction(Module):
    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return absolute(self(inputs), targets)


class LossInside(Module):
    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.net(inputs), targets)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self(inputs, targets)


class WithTerms(Module):
    """Losses with coefficients, one of which PyTorch does not have, and a penalty."""

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs = self(inputs)
        own = functional.cross_entropy(outputs, targets.argmax(-1)) + outputs.logsumexp(-1).square().mean()
        penalty = sum(each.square().sum() for each in self.parameters())
        return functional.mse_loss(outputs, targets) + 0.3 * own + 0.01 * penalty


class WithMetric(Classifier):
    """A metric of torchmetrics is a module with a state."""

    def __init__(self) -> None:
        from torchmetrics.classification import MulticlassAccuracy

        super().__init__()
        self.accuracy = MulticlassAccuracy(4)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.accuracy(self(inputs).flatten(0, -2), targets.flatten())
        self.log("accuracy", self.accuracy)
        return super().step(inputs, targets)


right(
    loss_of_pytorch=lambda: fit(Module(), validates=True),
    module_of_pytorch=lambda: fit(Classifier(), data=tokens()),
    named_module=lambda: fit(WithHuber(), "criterion"),
    named_method=lambda: fit(WithMethod(), "compute_loss", accumulate_grad_batches=2),
    named_function=lambda: fit(WithFunction(), absolute),
    loss_inside_of_forward=lambda: fit(of(LossInside, coefficient=0.2), accumulate_grad_batches=2),
    coefficient=lambda: fit(of(Module, coefficient=0.5)),
    coefficient_and_accumulation=lambda: fit(of(Module, coefficient=0.2), accumulate_grad_batches=2),
    terms=lambda: fit(WithTerms(), accumulate_grad_batches=2),
    metric_of_torchmetrics=lambda: fit(WithMetric(), data=tokens()),
)
right("without a loss", loss_that_has_no_name=lambda: fit(WithHuber(), accumulate_grad_batches=2))
wrong(
    "divided by 9",
    divided_twice=lambda: fit(
        of(Classifier, coefficient=1 / 3), "criterion", data=tokens(), accumulate_grad_batches=3
    ),
)
not_comparable(
    "divided by 9", "coefficient", "loss=",
    divided_twice_or_a_coefficient=lambda: fit(of(Module, coefficient=1 / 3), accumulate_grad_batches=3),
)  # fmt: skip
wrong(
    "micro-batches of unequal labels",
    mean_of_means=lambda: fit(Classifier(), data=tokens(lambda row: row % 5), accumulate_grad_batches=3),
)
wrong(
    "1 micro-batch divided by 3",
    last_step_of_an_epoch=lambda: fit(Module(), data=numbers(28), accumulate_grad_batches=3),
)

# --- automatic optimization ---


class Scheduled(Module):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class LateLayers(Module):
    """Its layers are made when training begins."""

    def __init__(self) -> None:
        super().__init__()
        del self.net

    def setup(self, stage: str) -> None:
        self.first = nn.Linear(8, 16)

    def configure_model(self) -> None:
        self.net = nn.Sequential(self.first, nn.Tanh(), nn.Linear(16, 4))


class Unfreezing(callbacks.BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer)


class WithIterator(Module):
    def training_step(self, dataloader_iter: Any) -> Any:
        return self.step(*next(dataloader_iter)[0])


class WithLBFGS(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1)


class OldOptimizer(Module):
    """Its optimizer holds the layers of before."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        return optimizer


def scaled() -> Any:
    """Float16 with GradScaler, which Lightning has for a CPU where it is asked so."""
    return [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))]


averaging = callbacks.StochasticWeightAveraging
right(
    accumulation=lambda: fit(Module(), accumulate_grad_batches=3),
    clipping_to_a_norm=lambda: fit(Module(), accumulate_grad_batches=2, gradient_clip_val=0.1),
    clipping_to_a_value=lambda: fit(Module(), gradient_clip_val=0.01, gradient_clip_algorithm="value"),
    bfloat16_by_autocast=lambda: fit(Classifier(), data=tokens(), precision="bf16-mixed"),
    bfloat16=lambda: fit(Module(), precision="bf16-true"),
    float16_with_a_scaler=lambda: fit(Module(), plugins=scaled(), gradient_clip_val=0.1),
    float64=lambda: fit(Module(), precision="64-true"),
    schedule_of_steps=lambda: fit(Scheduled()),
    averaged_weights=lambda: fit(Module(), callbacks=[averaging(0.05, 1)], max_epochs=3, validates=True),
    moving_average=lambda: fit(Module(), callbacks=[callbacks.EMAWeightAveraging()], max_epochs=2),
    batch_norm_and_dropout=lambda: fit(Normalized(), accumulate_grad_batches=2, max_epochs=2),
    schedule_of_accumulation=lambda: fit(
        Module(), callbacks=[callbacks.GradientAccumulationScheduler({0: 1, 1: 2})], max_epochs=2
    ),
    validation_between=lambda: fit(Module(), validates=True, val_check_interval=0.25),
    layers_made_late=lambda: fit(LateLayers()),
    batches_from_an_iterator=lambda: fit(WithIterator()),
)
right("net.0.weight", unfrozen=lambda: fit(Module(), callbacks=[Unfreezing()], rows=12, max_epochs=2))
wrong("trains nothing", optimizer_of_other_layers=lambda: fit(OldOptimizer()))
not_comparable("LBFGS", closure_called_again=lambda: fit(WithLBFGS()))

# --- manual optimization ---


class Adversarial(Module):
    """As in Lightning's documentation: two optimizers, toggled."""

    toggles = True

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.judge = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def against(self, some: torch.Tensor, target: float) -> torch.Tensor:
        logits = self.judge(some)
        return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        (inputs, real), (generator, judge) = batch, self.optimizers()
        self.minimize(generator, lambda: self.against(self(inputs), 1.0))
        fake = self(inputs).detach()
        self.minimize(judge, lambda: (self.against(real, 1.0) + self.against(fake, 0.0)) / 2)

    def minimize(self, optimizer: Any, loss: Any) -> None:
        if self.toggles:
            self.toggle_optimizer(optimizer)
        self.manual_backward(loss())
        optimizer.step()
        optimizer.zero_grad()
        if self.toggles:
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(each.parameters(), 0.01) for each in (self.net, self.judge)]


class WithClosure(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()

        def closure() -> torch.Tensor:
            loss = self.step(*batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            return loss

        optimizer.step(closure=closure)


class ClippingEarly(Manual):
    def on_after_backward(self) -> None:
        self.clip_gradients(self.optimizers(), 0.01, "norm")


right(
    manual=lambda: fit(Manual()),
    manual_accumulation=lambda: fit(of(Manual, micro=3, divisor=3, norm=0.1)),
    manual_closure=lambda: fit(WithClosure()),
    adversarial=lambda: fit(Adversarial()),
)
wrong("still scaled", clipped_while_scaled=lambda: fit(of(Manual, norm=0.1), plugins=scaled()))
wrong("zero_grad is missing", manual_without_zero_grad=lambda: fit(of(Manual, zeroes=False)))
wrong("clipped before", clipped_after_each_backward=lambda: fit(of(ClippingEarly, micro=2, divisor=2)))
right(  # its first step is
    "not compared from step 2", "zero_grad is missing",
    adversarial_without_zero_grad=lambda: fit(of(Adversarial, toggles=False)),
)  # fmt: skip
not_comparable("not divided by 2", "coefficient", undivided=lambda: fit(of(Manual, micro=2)))
