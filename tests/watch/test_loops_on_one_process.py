"""Loops of one process that are right, wrong for a named cause, or not comparable."""

import copy
import threading
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops import (
    MLP,
    Claims,
    Ended,
    LanguageModel,
    clip,
    count,
    cross_entropy,
    loop,
    mse,
    normalized,
    numbers,
    scaled,
    sgd,
    steps_of,
    tokens,
    train,
    train_by,
    watch,
)
from torch import nn
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
    claims[name].check(claims[name].ended())


# --- accumulation, and what a loss averages over ---

UNEVEN = [6, 6, 6, 2]


def uneven(step: int, micro: int) -> Any:
    return numbers(step, micro, UNEVEN[micro])


right(
    plain=lambda: loop(MLP()),
    micro_batches_divided=lambda: loop(MLP(), micro=4),
    uneven_micro_batches_weighted_by_rows=lambda: loop(
        MLP(), micro=4, batch=uneven, share=lambda number: UNEVEN[number] / sum(UNEVEN)
    ),
)
wrong(
    "micro-batches of unequal rows are averaged as if equal",
    uneven_micro_batches_averaged=lambda: loop(MLP(), micro=4, batch=uneven),
)
wrong(
    "the loss of each of 4 micro-batches is not divided by 4",
    micro_batches_not_divided=lambda: loop(MLP(), micro=4, share=lambda number: 1.0),
)
wrong(
    "3 micro-batches divided by 4",
    an_incomplete_window=lambda: loop(MLP(), micro=3, share=lambda number: 1 / 4),
)


def masked(run: Any, model: nn.Module, by_labels: bool, lengths: tuple[int, ...] = (6, 6, 6, 6)) -> Any:
    """Micro-batches with 0 to 3 ignored labels a row; their means are averaged, or weighted by labels."""
    for step in steps_of(torch.optim.AdamW(model.parameters()), 2):
        batches = [tokens(step, number, number, length) for number, length in enumerate(lengths)]
        total = sum(count(labels) for _, labels in batches)
        for ids, labels in batches:
            share = count(labels) / total if by_labels else 1 / len(batches)
            (run.loss(model(ids), labels) * share).backward()
    return run


def language_model(weight: Any = None) -> tuple[Any, nn.Module]:
    model = LanguageModel()
    return watch(model, cross_entropy, weight=weight), model


right(
    masked_labels_weighted=lambda: masked(*language_model(), by_labels=True),
    padded_lengths_weighted=lambda: masked(*language_model(), True, (6, 7, 8, 9)),
    padded_lengths_with_a_stated_weight=lambda: masked(
        *language_model(lambda logits, labels: count(labels)), True, (6, 7, 8, 9)
    ),
)
wrong(
    "micro-batches of unequal labels are averaged as if equal",
    masked_labels_averaged=lambda: masked(*language_model(), by_labels=False),
)


class Shifted(LanguageModel):
    """Its loss is that of the next token, as in models of Hugging Face: the first label does not count."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return cross_entropy(super().forward(ids)[:, :-1], labels[:, 1:])


@right()
def labels_after_the_first_weighted() -> Any:
    run = watch(model := Shifted())
    for step in steps_of(sgd(model)):
        batches = [tokens(step, number, 3 * number, 12) for number in range(3)]
        total = sum(count(labels[:, 1:]) for _, labels in batches)
        for ids, labels in batches:
            labels[:, 0] = 1
            (model(ids, labels) * count(labels[:, 1:]) / total).backward()
    return run


@right()
def gradients_divided_at_the_end() -> Any:
    run = watch(model := MLP(), mse)

    def divide() -> None:
        for each in model.parameters():
            each.grad /= 72

    return train(run, model, sgd(model), micro=3, share=lambda number: 24.0, before_step=divide)


# --- clipping ---

right(
    clipped=lambda: loop(MLP(), micro=2, clip_norm=0.1, clips=0.1),
    a_sum_under_active_clipping=lambda: loop(
        MLP(), micro=4, clip_norm=0.1, clips=0.1, share=lambda number: 1.0
    ),
)
right("clip", clipping_that_is_never_active=lambda: loop(MLP(), clip_norm=1e6, clips=1e6))
wrong("state clip_norm", clipping_not_stated=lambda: loop(MLP(), micro=2, clips=0.1))


@right()
def clipped_by_a_stated_function() -> Any:
    run = watch(model := MLP(), mse, lambda parameters: nn.utils.clip_grad_value_(parameters, 0.01))
    return train(
        run, model, sgd(model), before_step=lambda: nn.utils.clip_grad_value_(model.parameters(), 0.01)
    )


@wrong("not clipped to 0.1 when the optimizer steps")
def clipped_after_the_step() -> Any:
    run, optimizer = watch(model := MLP(), mse, clip_norm=0.1), sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        inputs, labels = numbers(step, 0)
        run.loss(model(inputs), labels).backward()
        optimizer.step()
        clip(model, 0.1)()
    return run


@wrong("clipped before all micro-batches were in it")
def clipped_before_the_last_micro_batch() -> Any:
    run = watch(model := MLP(), mse, clip_norm=0.1)
    for step in steps_of(sgd(model), 3):
        for number in range(2):
            inputs, labels = numbers(step, number)
            clip(model, 0.1)() if number else None
            (run.loss(model(inputs), labels) / 2).backward()
    return run


right(clipped_after_unscaling=scaled)
right("GradScaler", a_step_that_grad_scaler_skips=lambda: scaled(overflows=True))
wrong(
    "while it was still scaled", "unscale_",
    clipped_while_scaled=lambda: scaled(unscales=False),
    clipped_while_scaled_for_a_fused_optimizer=lambda: scaled(unscales=False, is_fused=True),
)  # fmt: skip


# --- zero_grad and the optimizer ---


@right()
def zero_grad_after_the_step() -> Any:
    run, optimizer = watch(model := MLP(), mse), sgd(model)
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    return train(run, model, optimizer)


@wrong("it is zero when the optimizer steps", "zero_grad")
def zero_grad_before_the_step() -> Any:
    run, optimizer = watch(model := MLP(), mse), sgd(model)
    return train(run, model, optimizer, before_step=optimizer.zero_grad)


@wrong("the gradients of the step before are in it", "zero_grad is missing")
def zero_grad_missing() -> Any:
    run, optimizer = watch(model := MLP(), mse), sgd(model)
    return train(run, model, SimpleNamespace(zero_grad=lambda: None, step=optimizer.step))  # type: ignore[arg-type]


@wrong("trains nothing of this model")
def the_optimizer_of_a_copy() -> Any:
    return loop(model := MLP(), optimizer=lambda _: sgd(copy.deepcopy(model)))


@wrong("bfloat16", "narrower type")
def optimizer_state_cast_to_bfloat16() -> Any:
    run, optimizer = watch(model := MLP(), mse), sgd(model)

    def cast() -> None:
        for state in optimizer.state.values():
            state["momentum_buffer"] = state["momentum_buffer"].bfloat16()

    optimizer.register_step_post_hook(lambda *_: cast())
    return train(run, model, optimizer)


@wrong("makes another update of the same gradients")
def weights_changed_by_a_hook_of_the_step() -> Any:
    run, optimizer = watch(model := MLP(), mse), sgd(model)
    optimizer.register_step_post_hook(lambda *_: model.fc1.weight.data.mul_(0.99))
    return train(run, model, optimizer)


right(
    foreach=lambda: loop(MLP(), optimizer=partial(torch.optim.AdamW, foreach=True)),
    fused=lambda: loop(MLP(), optimizer=partial(torch.optim.AdamW, fused=True)),
    adafactor=lambda: loop(MLP(), optimizer=torch.optim.Adafactor),
)


@right()
def two_optimizers_of_one_model() -> Any:
    run = watch(model := MLP(), mse)
    muon = torch.optim.Muon([each for each in model.parameters() if each.dim() == 2])
    adam = torch.optim.AdamW([each for each in model.parameters() if each.dim() != 2])
    return train(run, model, muon, before_step=lambda: (adam.step(), adam.zero_grad()))


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


# --- between the model and the loss ---


@right()
def outputs_processed_before_the_loss() -> Any:
    run = watch(model := MLP(), mse)
    return train(run, lambda x: 2 * model(x).flip(1) + 1, sgd(model))


@right()
def outputs_and_inputs_changed_in_place() -> Any:
    run = watch(model := MLP(), mse)
    for step in steps_of(sgd(model)):
        inputs, labels = numbers(step, 0)
        outputs = model(inputs)
        outputs.mul_(2)
        run.loss(outputs, labels).backward()
        inputs.zero_()
    return run


@right()
def a_penalty_on_the_outputs() -> Any:
    def terms(loss: Any, model: nn.Module, step: int) -> torch.Tensor:
        inputs, labels = numbers(step, 0)
        outputs = model(inputs)
        return loss(outputs, labels) + 0.1 * outputs.abs().mean()

    return train_by(terms)


@wrong("a part of the loss does not come from the model's outputs")
def a_penalty_on_the_weights() -> Any:
    def terms(loss: Any, model: nn.Module, step: int) -> torch.Tensor:
        inputs, labels = numbers(step, 0)
        return loss(model(inputs), labels) + 0.1 * sum(each.pow(2).sum() for each in model.parameters())

    return train_by(terms)


@wrong("times as large as they should be")
def two_losses_of_one_call_with_two_coefficients() -> Any:
    def terms(loss: Any, model: nn.Module, step: int) -> torch.Tensor:
        inputs, labels = numbers(step, 0)
        outputs = model(inputs)
        return loss(outputs[:, :2], labels[:, :2]) + 0.1 * loss(outputs[:, 2:], labels[:, 2:])

    return train_by(terms)


def contrastive(weight: Any) -> Any:
    """The loss of each row depends on the other rows of its micro-batch."""

    def loss(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(some @ others.T, torch.arange(len(some)))

    def terms(loss: Any, model: nn.Module, step: int) -> torch.Tensor:
        views = [[model(numbers(step, number + view)[0]) for view in (0, 5)] for number in range(2)]
        return sum(loss(*each) for each in views) / 2

    return train_by(terms, loss=loss, weight=weight)


right(contrastive_losses_with_a_stated_weight=lambda: contrastive(lambda some, others: len(some)))
wrong(
    "the loss of a row depends on other rows", "weight=",
    contrastive_losses_accumulated=lambda: contrastive(None),
)  # fmt: skip

# --- models ---

right(
    tied_weights=lambda: loop(LanguageModel(is_tied=True), loss=cross_entropy, batch=tokens, micro=2),
    dropout=lambda: loop(LanguageModel(dropout=0.3), loss=cross_entropy, batch=tokens, micro=3),
    a_compiled_model=lambda: loop(MLP(), layout=lambda model: torch.compile(model, backend="aot_eager")),
    a_model_that_compiles_itself=lambda: loop(
        MLP(), layout=lambda model: model.compile(backend="aot_eager") or model, micro=2
    ),
)


@right()
def checkpointed_dropout() -> Any:
    class Checkpointed(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(
                lambda some: functional.dropout(self.act(self.fc1(some)), 0.2), x, use_reentrant=False
            )
            return self.fc2(hidden)

    return loop(Checkpointed(), micro=2)


@right()
def a_reentrant_checkpoint_around_the_model() -> Any:
    run = watch(model := MLP(), mse)
    wrapped = lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=True)  # noqa: E731
    return train(run, wrapped, sgd(model), micro=2)


@right()
def a_validation_between_backward_and_step() -> Any:
    run = watch(model := normalized(), mse)

    def validate() -> None:
        inputs, labels = numbers(9, 9)
        model.eval()
        run.loss(model(inputs), labels)
        model.train()
        with torch.no_grad():
            run.loss(model(inputs), labels)

    return train(run, model, sgd(model), before_step=validate)


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
def copies_of_the_model_that_average_it() -> Any:
    run = watch(model := MLP(), mse)
    average, other = torch.optim.swa_utils.AveragedModel(model), copy.deepcopy(model)

    def use() -> None:
        average(numbers(0, 0)[0])
        other(numbers(0, 0)[0]).sum().backward()
        average.update_parameters(model)

    return train(run, model, sgd(model), before_step=use)


@right()
def data_parallel_over_virtual_devices() -> Any:
    run = watch(model := nn.Sequential(normalized(), nn.Dropout(0.2)), mse)
    three = devices.virtual(3)
    devices.place(model, three[0])
    parallel = DataParallel(model, three)
    return train(run, parallel, sgd(model), micro=2, batch=lambda step, number: numbers(step, number, 8))


@right()
def a_loop_that_survives_an_exception() -> Any:
    run, optimizer = watch(model := MLP(), mse), sgd(model)
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


right(
    "no parameter has a gradient other than zero",
    a_dead_loss=lambda: loop(MLP(), share=lambda number: 0.0),
)


@wrong("parameters changed after it")
def weights_changed_between_forward_and_step() -> Any:
    run = watch(model := MLP(), mse)

    @torch.no_grad()
    def shrink() -> None:
        model.fc1.weight.mul_(0.9)

    return train(run, model, sgd(model), before_step=shrink)


@right("no optimizer that stepped holds fc1.weight, fc1.bias")
def an_optimizer_of_a_part() -> Any:
    run = watch(model := MLP(), mse)
    return train(run, model, sgd(model.fc2))


@wrong("other weights")
def two_calls_with_two_coefficients() -> Any:
    def terms(loss: Any, model: nn.Module, step: int) -> torch.Tensor:
        (one, labels), (other, others) = numbers(step, 0), numbers(step, 1)
        return (loss(model(one), labels) + 0.1 * loss(model(other), others)) / 2

    return train_by(terms)


# --- what cannot be compared, and misuse ---


@not_comparable("create_graph")
def a_gradient_of_a_gradient() -> Any:
    def terms(loss: Any, model: nn.Module, step: int) -> torch.Tensor:
        inputs, labels = numbers(step, 0)
        outputs = model(inputs.requires_grad_())
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return loss(outputs, labels) + slope.pow(2).sum()

    return train_by(terms)


@not_comparable("closure")
def a_step_with_a_closure() -> Any:
    run = watch(model := MLP(), mse)
    inputs, labels = numbers(0, 0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = run.loss(model(inputs), labels)
        loss.backward()
        return loss

    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    optimizer.step(closure)
    return run


@not_comparable("not a buffer")
def a_state_that_is_not_a_buffer() -> Any:
    class Counts(MLP):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x) * self.calls

    return loop(Counts())


@not_comparable("run.loss was not called")
def the_observed_loss_is_not_called() -> Any:
    run = watch(model := MLP(), mse)
    train(SimpleNamespace(loss=mse), model, sgd(model))
    return run


@not_comparable("the model was not called")
def the_root_is_never_called() -> Any:
    run = watch(model := MLP(), mse)
    return train(run, lambda x: model.fc2(model.act(model.fc1(x))), sgd(model))


def test_a_model_that_is_laid_out_already_is_refused() -> None:
    three = devices.virtual(3)
    devices.place(model := MLP(), three[0])
    with pytest.raises(ConfigError, match="before"):
        watch(DataParallel(model, three), mse)


def test_further_steps_are_watched_again_and_find_a_late_bug() -> None:
    run, optimizer = watch(model := MLP(), mse, steps=2), sgd(model)
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


def test_gradients_that_are_not_numbers_are_warned_of() -> None:
    run = loop(MLP(), loss=lambda outputs, targets: mse(outputs, targets) * float("nan"))
    assert Ended.of(run).warnings or run.findings


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = MLP()
    model.lock = threading.Lock()
    with pytest.raises(ConfigError, match="attribute 'lock' of the model holds a lock"):
        watch(model, mse)


class Centered(nn.Module):
    """Keeps the mean of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(4))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = mse(outputs - self.center, targets)
        self.center = 0.9 * self.center + 0.1 * outputs.detach().mean(0)
        return loss


def test_a_loss_that_keeps_something_keeps_what_it_keeps_unwatched() -> None:
    centers = []
    for is_watched in (True, False):
        torch.manual_seed(0)
        model, loss = MLP(), Centered()
        function = watch(model, loss, steps=1).loss if is_watched else loss
        assert function is not None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            function(model(torch.randn(4, 8)), torch.randn(4, 4)).backward()
            optimizer.step()
        centers.append(loss.center)
    assert torch.equal(*centers)


def test_a_copy_of_the_observed_loss_is_the_users() -> None:
    with watch(MLP(), Centered()) as run:
        assert type(copy.deepcopy(run.loss)) is Centered


def test_steps_after_one_that_raised_are_compared() -> None:
    class Fails(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            Fails.calls += 1
            if Fails.calls == 2:
                raise MemoryError
            return super().step(closure)

    model = MLP()
    run = watch(model, mse, steps=3)
    optimizer = Fails(model.parameters(), lr=0.1)
    assert run.loss is not None
    for _ in range(5):
        optimizer.zero_grad()
        run.loss(model(torch.randn(4, 8)), torch.randn(4, 4)).backward()
        with suppress(MemoryError):
            optimizer.step()
    assert run.verdict().steps == 3
