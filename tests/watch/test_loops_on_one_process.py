"""Loops of one process that are right, wrong for a named cause, or not comparable."""

import copy
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops import (
    MLP,
    Claims,
    LanguageModel,
    clip,
    count,
    cross_entropy,
    loop,
    minimize,
    mse,
    normalized,
    numbers,
    scaled,
    sgd,
    steps_of,
    tokens,
    train,
    watch,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dpexp import devices
from dpexp.config.errors import ConfigError, VerificationError
from dpexp.parallel.data_parallel import DataParallel

pytestmark = pytest.mark.usefixtures("one_thread")
claims = Claims()
right, wrong, not_comparable = claims.right, claims.wrong, claims.not_comparable


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("name", claims)
def test_the_verdict_of(name: str) -> None:
    claims[name].check(claims[name].ends())


# --- accumulation, and what a loss averages over ---

UNEVEN = [6, 6, 6, 2]


def uneven(step: int, micro: int) -> Any:
    return numbers(step, micro, UNEVEN[micro])


def divide_gradients(model: nn.Module, optimizer: Any) -> None:
    for each in model.parameters():
        each.grad /= 72


right(
    micro_batches_divided=lambda: loop(micro=4),
    uneven_micro_batches_weighted_by_rows=lambda: loop(
        micro=4, batch=uneven, share=lambda number: UNEVEN[number] / sum(UNEVEN)
    ),
    gradients_divided_at_the_end=lambda: loop(
        micro=3, share=lambda number: 24.0, before_step=divide_gradients
    ),
)
wrong(
    "micro-batches of unequal rows are averaged as if equal",
    uneven_micro_batches_averaged=lambda: loop(micro=4, batch=uneven),
)
wrong(
    "the loss of each of 4 micro-batches is not divided by 4",
    micro_batches_not_divided=lambda: loop(micro=4, share=lambda number: 1.0),
)
wrong(
    "3 micro-batches divided by 4",
    an_incomplete_window=lambda: loop(micro=3, share=lambda number: 1 / 4),
)


def masked(by_labels: bool) -> Any:
    """Micro-batches with 0 to 3 ignored labels a row; their means are averaged, or weighted by labels."""
    run = watch(model := LanguageModel(), cross_entropy)
    for step in steps_of(torch.optim.AdamW(model.parameters())):
        batches = [tokens(step, number, number, 6 + number * by_labels) for number in range(4)]
        total = sum(count(labels) for _, labels in batches)
        for ids, labels in batches:
            share = count(labels) / total if by_labels else 1 / len(batches)
            (run.loss(model(ids), labels) * share).backward()
    return run


right(padded_lengths_weighted=lambda: masked(by_labels=True))
wrong(
    "micro-batches of unequal labels are averaged as if equal",
    masked_labels_averaged=lambda: masked(by_labels=False),
)


# --- clipping ---


def clip_values(parameters: Any) -> None:
    nn.utils.clip_grad_value_(parameters, 0.01)


def micro_batch_clipped_alone(model: nn.Module, number: int) -> Any:
    if number:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return torch.enable_grad()


right(
    clipped=lambda: loop(micro=2, before_step=clip(0.1)),
    clipped_as_stated=lambda: loop(micro=2, clip_norm=0.1, before_step=clip(0.1)),
    clipped_by_a_stated_function=lambda: loop(
        clip_norm=clip_values, before_step=lambda model, _: clip_values(model.parameters())
    ),
    a_sum_under_active_clipping=lambda: loop(
        micro=4, clip_norm=0.1, before_step=clip(0.1), share=lambda number: 1.0
    ),
    clipped_after_unscaling=scaled,
)
right("clip", clipping_that_is_never_active=lambda: loop(clip_norm=1e6, before_step=clip(1e6)))
right("GradScaler", a_step_that_grad_scaler_skips=lambda: scaled(overflows=True))
wrong(
    "not clipped to 0.1 when the optimizer steps",
    clipped_after_the_step=lambda: loop(clip_norm=0.1, after_step=clip(0.1)),
)
wrong(
    "clipped before all micro-batches were in it",
    clipped_before_the_last_micro_batch=lambda: loop(
        micro=2, clip_norm=0.1, during=micro_batch_clipped_alone
    ),
)
wrong(
    "while it was still scaled", "unscale_",
    clipped_while_scaled=lambda: scaled(unscales=False),
    clipped_while_scaled_for_a_fused_optimizer=lambda: scaled(unscales=False, is_fused=True),
)  # fmt: skip


def clipped_in_groups(model: nn.Module, _: Any) -> None:
    nn.utils.clip_grad_norm_(model.fc1.parameters(), 0.02)  # type: ignore[operator, union-attr]
    norm = nn.utils.get_total_norm([each.grad for each in model.fc2.parameters()])  # type: ignore[operator, union-attr]
    nn.utils.clip_grads_with_norm_(model.fc2.parameters(), 0.03, norm)  # type: ignore[operator, union-attr]


def shrink_gradients(model: nn.Module, _: Any) -> None:
    for each in model.parameters():
        each.grad *= min(1.0, 0.1 / float(each.grad.norm()))  # type: ignore[operator, union-attr]


def clipped_too_early(model: nn.Module, _: int) -> Any:
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    return torch.enable_grad()


right(
    clipped_in_two_groups=lambda: loop(before_step=clipped_in_groups),
    clipped_by_value=lambda: loop(before_step=lambda model, _: clip_values(model.parameters())),
    clipped_by_a_hook_of_the_optimizer=lambda: loop(
        optimizer=lambda parameters: hooked(torch.optim.SGD(parameters, lr=0.1))
    ),
)
wrong(
    "clipped before backward",
    clipped_before_backward=lambda: loop(during=clipped_too_early),
)
not_comparable(
    "code of its own", "clip_norm=",
    gradients_scaled_by_hand=lambda: loop(before_step=shrink_gradients),
)  # fmt: skip


def hooked(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    own = [each for group in optimizer.param_groups for each in group["params"]]
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(own, 0.05) and None)
    return optimizer


@wrong("it clips parameters of another model")
def another_model_clipped() -> Any:
    other = MLP()
    return loop(before_step=lambda *_: nn.utils.clip_grad_norm_(other.parameters(), 0.01))


@right()
def two_models_clipped_together() -> Any:
    run, first, second = None, nn.Linear(8, 8), MLP()
    run = watch(second, mse)
    both = [*first.parameters(), *second.parameters()]
    return train(
        run,
        lambda x: second(first(x)),
        sgd(both),
        before_step=lambda *_: nn.utils.clip_grad_norm_(both, 0.1),
    )


@right("extra.weight")
def a_part_that_is_added_while_watched() -> Any:
    run = watch(model := MLP(), mse)
    model.extra = nn.Linear(2, 2)
    return train(run, model, sgd(model.parameters()))


def in_two(model: Any, step: Callable[[list[Any]], None]) -> Any:
    """A loop of two optimizers, with the parameters of which ``step`` clips and steps."""
    run, optimizers = watch(model, mse), [sgd(model.fc1.parameters()), sgd(model.fc2.parameters())]
    for number in range(3):
        model.zero_grad()
        for micro in range(2):
            inputs, labels = numbers(number, micro)
            (run.loss(model(inputs), labels) / 2).backward()
        step(optimizers)
    return run


@right()
def two_optimizers_clipped_together() -> Any:
    def step(optimizers: list[Any]) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        for each in optimizers:
            each.step()

    return in_two(model := MLP(), step)


@right()
def two_optimizers_clipped_between_their_steps() -> Any:
    def step(optimizers: list[Any]) -> None:
        optimizers[0].step()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizers[1].step()

    return in_two(model := MLP(), step)


@right()
def steps_that_are_skipped_for_their_norm() -> Any:
    run, optimizer = watch(model := MLP(), mse), sgd(model.parameters())
    for step in range(6):
        optimizer.zero_grad()
        inputs, labels = numbers(step, 0)
        run.loss(model(inputs), labels).backward()
        limit = 0.01 if step % 2 else 0.1
        if float(nn.utils.clip_grad_norm_(model.parameters(), limit)) < 1e9 and step % 2:
            continue
        optimizer.step()
    return run


@wrong("they are still scaled")
def scaled_and_never_unscaled() -> Any:
    run, scaler = watch(model := MLP(), mse), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = sgd(model.parameters())
    for step in steps_of(optimizer):
        inputs, labels = numbers(step, 0)
        scaler.scale(run.loss(model(inputs), labels)).backward()
    return run


# --- zero_grad and the optimizer ---


def cast_state(model: Any, optimizer: Any) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"].bfloat16()


@torch.no_grad()
def shrink(model: Any, _: Any) -> None:
    model.fc1.weight.mul_(0.9)


wrong(
    "it is zero when the optimizer steps", "zero_grad",
    zero_grad_before_the_step=lambda: loop(before_step=lambda _, optimizer: optimizer.zero_grad()),
)  # fmt: skip
wrong(
    "bfloat16", "narrower type",
    optimizer_state_cast_to_bfloat16=lambda: loop(optimizer=sgd, after_step=cast_state),
)  # fmt: skip
wrong(
    "makes another update of the same gradients",
    weights_changed_by_a_hook_of_the_step=lambda: loop(after_step=shrink),
)
wrong("parameters changed after it", weights_changed_before_the_step=lambda: loop(before_step=shrink))


@wrong("the gradients of the step before are in it", "zero_grad is missing")
def zero_grad_missing() -> Any:
    run, optimizer = watch(model := MLP(), mse), sgd(model.parameters())
    return train(run, model, SimpleNamespace(zero_grad=lambda: None, step=optimizer.step))  # type: ignore[arg-type]


@wrong("trains nothing of this model")
def the_optimizer_of_a_copy() -> Any:
    model = MLP()
    return loop(model, optimizer=lambda _: sgd(copy.deepcopy(model).parameters()))


@wrong("the gradients of the step before are in it", "not divided by 2")
def two_faults() -> Any:
    model = MLP()
    mse(model(numbers(9, 9)[0]), numbers(9, 9)[1]).backward()
    run, optimizer = watch(model, mse), sgd(model.parameters())
    use = SimpleNamespace(zero_grad=lambda: None, step=optimizer.step)
    return train(run, model, use, micro=2, share=lambda number: 1.0)  # type: ignore[arg-type]


@not_comparable("hold no parameter of the model")
def an_optimizer_of_master_weights() -> Any:
    run = watch(model := MLP(), mse)
    masters = [nn.Parameter(each.detach().clone()) for each in model.parameters()]
    optimizer = sgd(masters)
    for step in range(3):
        model.zero_grad()
        inputs, labels = numbers(step, 0)
        run.loss(model(inputs), labels).backward()
        for master, each in zip(masters, model.parameters(), strict=True):
            master.grad = each.grad
        optimizer.step()
        for master, each in zip(masters, model.parameters(), strict=True):
            each.data.copy_(master)
    return run


@right("no optimizer that stepped holds fc1.weight, fc1.bias")
def an_optimizer_of_a_part() -> Any:
    model = MLP()
    return loop(model, optimizer=lambda _: sgd(model.fc2.parameters()))


@right()
def two_optimizers_of_one_model() -> Any:
    run = watch(model := MLP(), mse)
    muon = torch.optim.Muon([each for each in model.parameters() if each.dim() == 2])
    adam = torch.optim.AdamW([each for each in model.parameters() if each.dim() != 2])
    return train(run, model, muon, before_step=lambda *_: (adam.step(), adam.zero_grad()))


@right()
def parts_that_are_called_before_any_of_their_optimizers_steps() -> Any:
    run = watch(model := nn.ModuleList(MLP() for _ in range(3)), mse)
    optimizers = [sgd(part.parameters()) for part in model]
    for step in range(4):
        inputs, labels = numbers(step, 0)
        losses = [run.loss(part(inputs), labels) for part in model]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return run


@right()
def a_schedule_and_two_groups() -> Any:
    run = watch(model := MLP(), mse)
    groups = [{"params": model.fc1.parameters(), "lr": 1e-2}, {"params": model.fc2.parameters()}]
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
    for step in range(4):
        train(run, model, optimizer, steps=1, batch=lambda _, number, step=step: numbers(step, number))
        schedule.step()
    return run


@right()
def steps_after_one_that_raised() -> Any:
    failed = []

    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if self is optimizer and not failed:
                failed.append(self)
                raise MemoryError
            return super().step(closure)

    run, optimizer = watch(model := MLP(), mse), Fails(model.parameters(), lr=0.1)
    with pytest.raises(MemoryError):
        train(run, model, optimizer)
    return train(run, model, optimizer)


@right()
def an_optimizer_whose_state_is_saved_before_it_steps() -> Any:
    run, optimizer = watch(model := MLP(), mse), torch.optim.AdamW(model.parameters())
    get_optimizer_state_dict(model, optimizer)  # which takes a step of zeros
    return train(run, model, optimizer)


# --- between the model and the loss ---


@right()
def outputs_and_inputs_changed_in_place() -> Any:
    run = watch(model := MLP(), mse)
    for step in steps_of(sgd(model.parameters())):
        inputs, labels = numbers(step, 0)
        outputs = model(inputs)
        outputs.mul_(2)
        run.loss(outputs, labels).backward()
        inputs.zero_()
    return run


def penalty_on_the_outputs(loss: Any, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    outputs = model(x)
    return loss(outputs, y) + 0.1 * outputs.abs().mean()


def two_losses(loss: Any, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    outputs = model(x)
    return loss(outputs[:, :2], y[:, :2]) + 0.1 * loss(outputs[:, 2:], y[:, 2:])


def gradient_of_a_gradient(loss: Any, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    outputs = model(x.requires_grad_())
    (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    return loss(outputs, y) + slope.pow(2).sum()


def scaled_by_a_hook(loss: Any, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    outputs = model(x)
    outputs.register_hook(lambda gradient: gradient * torch.linspace(0, 2, 4))
    return loss(outputs, y)


right(
    a_gradient_that_a_hook_of_an_output_scales=lambda: minimize(scaled_by_a_hook),
    a_penalty_on_the_outputs=lambda: minimize(penalty_on_the_outputs),
    a_penalty_on_the_weights=lambda: minimize(
        lambda loss, model, x, y: loss(model(x), y) + 0.1 * model.fc1.weight.pow(2).sum()
    ),
    two_losses_of_one_call_with_two_coefficients=lambda: minimize(two_losses),
    two_calls_with_two_coefficients=lambda: minimize(
        lambda loss, model, x, y: (loss(model(x[:3]), y[:3]) + 0.1 * loss(model(x[3:]), y[3:])) / 2
    ),
)
not_comparable("create_graph", a_gradient_of_a_gradient=lambda: minimize(gradient_of_a_gradient))


def contrastive(micro: int) -> Any:
    """The loss of each row depends on the other rows of its micro-batch."""

    def loss(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(some @ others.T, torch.arange(len(some)))

    run = watch(model := MLP(), loss)
    for step in steps_of(sgd(model.parameters())):
        for number in range(micro):
            x, _ = numbers(step, number)
            first, second = run.loss(model(x[:3]), model(-x[:3])), run.loss(model(x[3:]), model(-x[3:]))
            ((first + second) / 2 / micro).backward()
    return run


right(two_contrastive_losses_of_a_backward_pass=lambda: contrastive(1))
not_comparable(
    "the loss of a row depends on other rows", "state weight=",
    contrastive_losses_accumulated=lambda: contrastive(2),
)  # fmt: skip


@right()
def preferences_that_begin_alike() -> Any:
    """The loss of every row is log(2) at the first step, as DPO's, and so follows by any rule."""
    model = LanguageModel()
    reference = copy.deepcopy(model)

    def log_odds(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        chosen = logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return (chosen * (labels != -100)).sum(1)

    def preference(logits: torch.Tensor, others: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -functional.logsigmoid(log_odds(logits, labels) - log_odds(others, labels)).mean()

    run = watch(model, preference)
    for step in steps_of(sgd(model.parameters())):
        for micro in range(3):
            ids, labels = tokens(step, micro, ignored=2 * micro, length=9 - micro)
            (run.loss(model(ids), reference(ids).detach(), labels) / 3).backward()
    return run


class Routed(MLP):
    """It keeps an auxiliary loss in an attribute, as a mixture of experts does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.fc1(x))
        self.balance = hidden.mean(0).pow(2).sum()
        return self.fc2(hidden)


def with_balance(loss: Any, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return loss(model(x), y) + 0.1 * model.balance


def attacked(loss: Any, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (slope,) = torch.autograd.grad(loss(model(x.requires_grad_()), y), x)
    return loss(model(x.detach() + 0.1 * slope.sign()), y)


@right()
def an_auxiliary_loss_in_an_attribute() -> Any:
    run = watch(model := Routed(), mse)
    for step in steps_of(sgd(model.parameters())):
        for number in range(2):
            (with_balance(run.loss, model, *numbers(step, number)) / 2).backward()
    return run


@right()
def a_loss_of_two_lines() -> Any:
    """A GAN's: what real and what generated rows are judged to be is not divided by 2."""
    run, one, zero = watch(model := MLP(), mse), torch.ones(6, 4), torch.zeros(6, 4)
    for step in steps_of(sgd(model.parameters())):
        run.loss(model(numbers(step, 0)[0]), one).backward()
        run.loss(model(numbers(step, 1)[0]), zero).backward()
    return run


@not_comparable("not divided by 2, or the loss has this coefficient", "several terms")
def a_loss_of_a_function_that_two_places_call() -> Any:
    run = watch(model := MLP(), mse)

    def judge(batch: Any) -> torch.Tensor:
        return run.loss(model(batch[0]), batch[1])

    for step in steps_of(sgd(model.parameters())):
        judge(numbers(step, 0)).backward()
        judge(numbers(step, 1)).backward()
    return run


@right()
def class_weights_over_all_rows() -> Any:
    weight = torch.linspace(0.5, 2, 16)

    def loss(logits: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), weight)

    run = watch(model := LanguageModel(), loss)
    for step in steps_of(sgd(model.parameters())):
        batches = [tokens(step, number, number) for number in range(2)]
        total = sum(weight[labels[labels >= 0]].sum() for _, labels in batches)
        for ids, labels in batches:
            share = weight[labels[labels >= 0]].sum() / total
            (run.loss(model(ids), labels, weight) * share).backward()
    return run


right(adversarial_rows_by_autograd_grad=lambda: minimize(attacked))


@not_comparable("comes from inside the model", "keep it in an attribute")
def a_term_that_a_hook_takes() -> Any:
    taken = []
    run = watch(model := MLP(), mse)
    model.fc1.register_forward_hook(lambda *some: taken.append(some[2]))
    for step in steps_of(sgd(model.parameters())):
        inputs, labels = numbers(step, 0)
        (run.loss(model(inputs), labels) + taken.pop().pow(2).mean()).backward()
    return run


@right("fc1.weight, fc1.bias never got a gradient", "requires_grad of fc2.bias was changed")
def parameters_that_are_not_trained() -> Any:
    run = watch(model := MLP(), mse)
    model.fc2.bias.requires_grad_(False)
    part = lambda x: model.fc2(model.act(model.fc1(x)).detach())  # noqa: E731
    return train(run, part, sgd(model.parameters()))


# --- sums ---


def summed(outputs: torch.Tensor, targets: torch.Tensor, count: float = 1.0) -> torch.Tensor:
    return (outputs - targets).pow(2).sum() / count


def by_count(number_of: Any) -> Any:
    """A sum of uneven micro-batches, which the watched loss divides."""
    run = watch(model := MLP(), summed)
    for step in steps_of(sgd(model.parameters())):
        for number, rows in enumerate(UNEVEN):
            inputs, labels = uneven(step, number)
            run.loss(model(inputs), labels, number_of(rows)).backward()
    return run


right(
    a_sum_divided_outside=lambda: loop(
        loss=summed, micro=4, batch=uneven, share=lambda number: 1 / sum(UNEVEN)
    ),
    a_sum_divided_by_all_rows=lambda: by_count(lambda rows: sum(UNEVEN)),
)
wrong(
    "micro-batches of unequal rows are averaged as if equal",
    a_sum_divided_by_own_rows=lambda: by_count(lambda rows: rows),
)

# --- models ---


class Checkpointed(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(
            lambda some: functional.dropout(self.act(self.fc1(some)), 0.2), x, use_reentrant=False
        )
        return self.fc2(hidden)


right(
    a_compiled_model=lambda: loop(layout=lambda model: torch.compile(model, backend="aot_eager"), micro=2),
    checkpointed_dropout=lambda: loop(Checkpointed(), micro=2),
)
right("no parameter has a gradient other than zero", a_dead_loss=lambda: loop(share=lambda number: 0.0))


@right()
def a_reentrant_checkpoint_around_the_model() -> Any:
    run = watch(model := MLP(), mse)
    wrapped = lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=True)  # noqa: E731
    return train(run, wrapped, sgd(model.parameters()), micro=2)


@right()
def a_validation_between_backward_and_step() -> Any:
    run = watch(model := normalized(), mse)

    def validate(*_: Any) -> None:
        inputs, labels = numbers(9, 9)
        model.eval()
        run.loss(model(inputs), labels)
        model.train()
        with torch.no_grad():
            run.loss(model(inputs), labels)

    return train(run, model, sgd(model.parameters()), before_step=validate)


@right()
def a_gan_in_one_loop() -> tuple[Any, ...]:
    generator, critic = MLP(), MLP(4, 8, 1)
    loss = functional.binary_cross_entropy_with_logits
    runs = watch(generator, loss), watch(critic, loss)
    of_generator, of_critic = (torch.optim.Adam(each.parameters()) for each in (generator, critic))
    one, zero = torch.ones(6, 1), torch.zeros(6, 1)
    for step in range(4):
        noise, real = numbers(step, 0)
        fake = generator(noise)
        of_critic.zero_grad()
        judged = runs[1].loss(critic(real), one), runs[1].loss(critic(fake.detach()), zero)
        (sum(judged) / 2).backward()
        of_critic.step()
        of_generator.zero_grad()
        runs[0].loss(critic(fake), one).backward()
        of_generator.step()
    return runs


@right()
def parts_that_the_loop_calls() -> Any:
    run = watch(model := MLP(), mse)
    return train(run, lambda x: model.fc2(model.act(model.fc1(x))), sgd(model.parameters()), micro=2)


@right()
def copies_of_the_model_that_average_it() -> Any:
    run = watch(model := MLP(), mse)
    average, other = torch.optim.swa_utils.AveragedModel(model), copy.deepcopy(model)

    def use(*_: Any) -> None:
        average(numbers(0, 0)[0])
        other(numbers(0, 0)[0]).sum().backward()
        average.update_parameters(model)

    return train(run, model, sgd(model.parameters()), before_step=use)


@right()
def data_parallel_over_virtual_devices() -> Any:
    three = devices.virtual(3)
    devices.place(model := normalized(), three[0])
    return loop(
        model,
        layout=lambda model: DataParallel(model, three),
        micro=2,
        batch=lambda step, number: numbers(step, number, 8),
    )


@right()
def a_loop_that_survives_an_exception() -> Any:
    run, optimizer = watch(model := MLP(), mse), sgd(model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        inputs, labels = numbers(step, 0)
        try:
            loss = run.loss(model(inputs[:, :3] if step == 1 else inputs), labels)
            if step == 2:
                raise MemoryError
        except (RuntimeError, MemoryError):
            continue
        loss.backward()
        optimizer.step()
    return run


# --- what cannot be compared, and misuse ---


class Counts(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.kept = 0, [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.kept[0] += self.counts_in_a_list
        return super().forward(x) * (self.calls + self.kept[0])

    counts_in_a_list = 0


class CountsInAList(Counts):
    counts_in_a_list = 1


right(
    a_state_that_is_a_number=lambda: loop(Counts()),
    a_state_in_a_list=lambda: loop(CountsInAList()),  # each call is taken once, as in the loop
)


def closed(optimizer: Any) -> Any:
    """A loop whose gradients are computed inside of ``step``, as Lightning's are."""
    run = watch(model := MLP(), mse)
    used = optimizer(model.parameters())

    def closure() -> torch.Tensor:
        used.zero_grad()
        inputs, labels = numbers(0, 0)
        loss = run.loss(model(inputs), labels)
        loss.backward()
        return loss

    for _ in range(3):
        used.step(closure)
    return run


right(a_step_with_a_closure=lambda: closed(sgd))
not_comparable(
    "closure several times",
    a_closure_that_is_called_again=lambda: closed(lambda some: torch.optim.LBFGS(some, max_iter=2)),
)


@not_comparable("the gradient at output 0 of call 1 of the model", "is not finite", "single device as well")
def a_loss_that_is_not_a_number() -> Any:
    return loop(loss=lambda outputs, targets: mse(outputs, targets) * float("nan"))


@not_comparable("run.loss was not called")
def the_observed_loss_is_not_called() -> Any:
    run = watch(model := MLP(), mse)
    train(SimpleNamespace(loss=mse), model, sgd(model.parameters()))
    return run


@not_comparable("0 calls of the model", "watch the module that the loop calls")
def another_model_is_called() -> Any:
    run = watch(model := MLP(), mse)
    return train(run, copy.deepcopy(model), sgd(model.parameters()))


class Several(torch.optim.Optimizer):
    """A container of optimizers, as torchtitan has one."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = list(optimizers)
        super().__init__([group for each in optimizers for group in each.param_groups], {})

    def step(self, closure: Any = None) -> None:
        for each in self.optimizers:
            each.step()


def test_the_updates_of_optimizers_in_a_container_are_compared() -> None:
    model = MLP()
    parts = torch.optim.AdamW(model.fc1.parameters()), sgd(model.fc2.parameters())
    run = loop(model, optimizer=lambda _: Several(*parts)).verdict()
    assert (run.steps, list(run.warnings)) == (3, [])
    assert "updates" in str(run)


def test_a_model_that_is_laid_out_already_or_cannot_be_copied_is_refused() -> None:
    three = devices.virtual(3)
    devices.place(model := MLP(), three[0])
    with pytest.raises(ConfigError, match="before"):
        watch(DataParallel(model, three), mse)
    model.lock = threading.Lock()
    with pytest.raises(ConfigError, match="attribute 'lock' of the model holds a lock"):
        watch(model, mse)


def test_further_steps_are_watched_again_and_find_a_late_bug() -> None:
    run, optimizer = watch(model := MLP(), mse, steps=2), sgd(model.parameters())
    train(run, model, optimizer, micro=2, steps=3).verdict()
    assert run.steps == 2
    run.again()
    train(run, model, optimizer, micro=2, steps=3).verdict()
    assert run.steps == 4
    run.again()
    train(run, model, optimizer, micro=2, steps=3, share=lambda number: 1.0)
    with pytest.raises(VerificationError) as caught:
        run.verdict()
    assert caught.value.step == 5
    assert "not divided by 2" in caught.value.cause


def test_a_copy_of_the_observed_loss_is_the_users() -> None:
    with watch(MLP(), nn.MSELoss()) as run:
        assert type(copy.deepcopy(run.loss)) is nn.MSELoss
