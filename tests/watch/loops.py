"""What tests of watched loops have in common: models and data, a training loop, and claims of how it ends."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from helpers.in_ranks import in_ranks
from torch import distributed, nn
from torch.nn import functional

import dpexp
from dpexp.config.errors import NotComparableError, VerificationError
from dpexp.distributed.group import ProcessGroup

watch = partial(dpexp.watch, track=False)
mse = functional.mse_loss
Loop = Callable[[], Any]
"""It trains a watched model, and returns the watch, or several."""

# --- models and data ---


class MLP(nn.Module):
    def __init__(self, inputs: int = 8, hidden: int = 16, outputs: int = 4) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


class LanguageModel(nn.Module):
    def __init__(self, is_tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.emb, self.drop = nn.Embedding(16, 12), nn.Dropout(dropout)
        self.fc, self.head = nn.Linear(12, 12), nn.Linear(12, 16, bias=False)
        if is_tied:
            self.head.weight = self.emb.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.fc(self.drop(self.emb(ids)))))


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4), nn.Dropout(0.2))


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def numbers(step: int, micro: int, rows: int = 6, of_rank: int | None = None) -> Any:
    """Inputs (rows, 8) and targets (rows, 4), other ones on each rank."""
    seed = 1000 * (10 * step + micro) + (rank() if of_rank is None else of_rank)
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=rng), torch.randn(rows, 4, generator=rng)


def tokens(step: int, micro: int, ignored: int = 0, length: int = 6, of_rank: int | None = None) -> Any:
    """Ids and labels (3, length), the last labels of each row ignored."""
    seed = 1000 * (10 * step + micro) + (rank() if of_rank is None else of_rank)
    rng = torch.Generator().manual_seed(seed)
    ids, labels = (torch.randint(16, (3, length), generator=rng) for _ in range(2))
    labels[:, length - ignored :] = -100
    return ids, labels


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over all labels that are not ignored."""
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def count(labels: torch.Tensor) -> int:
    return int((labels != -100).sum())


# --- loops ---


def steps_of(optimizer: torch.optim.Optimizer, steps: int = 3) -> Iterator[int]:
    """The steps of a loop whose body does everything between ``zero_grad`` and ``step``."""
    for step in range(steps):
        optimizer.zero_grad()
        yield step
        optimizer.step()


def train(
    run: Any,
    model: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    *,
    steps: int = 3,
    micro: int = 1,
    batch: Callable[[int, int], Any] = numbers,
    share: Callable[[int], float] | None = None,
    during: Callable[[Any, int], AbstractContextManager[Any]] = lambda model, number: nullcontext(),
    before_step: Callable[[Any, Any], Any] = lambda model, optimizer: None,
) -> Any:
    """A plain training loop, as users write it: each step has ``micro`` backward passes.

    ``model`` is what the loop calls. ``share`` is what the loss of each micro-batch is multiplied by.
    """
    loss = run.loss or mse
    for step in steps_of(optimizer, steps):
        for number in range(micro):
            inputs, labels = batch(step, number)
            with during(model, number):
                (loss(model(inputs), labels) * (share(number) if share else 1 / micro)).backward()
        before_step(model, optimizer)
    return run


def loop(
    model: nn.Module | None = None,
    loss: Callable[..., torch.Tensor] | None = mse,
    *,
    clip_norm: Any = None,
    layout: Callable[[nn.Module], Any] = lambda model: model,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    after_step: Callable[[Any, Any], Any] | None = None,
    **training: Any,
) -> Any:
    """Watch a model, lay it out, train it. ``clip_norm`` is what is stated, not what the loop does."""
    model = MLP() if model is None else model
    run = watch(model, loss, clip_norm)
    laid_out = layout(model)
    used = optimizer(laid_out.parameters())
    if after_step is not None:
        used.register_step_post_hook(lambda *_: after_step(laid_out, used))
    return train(run, laid_out, used, **training)


def minimize(
    terms: Callable[..., torch.Tensor], loss: Callable[..., torch.Tensor] = mse, **options: Any
) -> Any:
    """A loop that minimizes ``terms(loss, model, inputs, labels)``, as users write it who add up several."""
    run = watch(model := MLP(), loss, **options)
    for step in steps_of(sgd(model.parameters())):
        terms(run.loss, model, *numbers(step, 0)).backward()
    return run


def scaled(
    unscales: bool = True,
    is_fused: bool = False,
    overflows: bool = False,
    layout: Callable[[nn.Module], nn.Module] = lambda model: model,
    cast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Any:
    """A loop with GradScaler and clipping, of two micro-batches a step, as in PyTorch's documentation."""
    run = watch(model := MLP(), mse, clip_norm=0.1)
    laid_out = layout(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        optimizer.zero_grad()
        for number in range(2):
            inputs, labels = numbers(step, number)
            labels = labels * 1e38 if overflows and step == 1 else labels
            with cast():
                loss = run.loss(laid_out(inputs).float(), labels) / 2
            scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return run


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def clip(norm: float) -> Callable[[Any, Any], Any]:
    return lambda model, optimizer: nn.utils.clip_grad_norm_(model.parameters(), norm)


# --- how they end ---


def ended(run: Any) -> dict[str, Any]:
    """The verdict of a watched loop: the error's name and words, or its warnings, and how many steps."""
    try:
        error, words = "", "; ".join(run.verdict().warnings)
    except (VerificationError, NotComparableError) as raised:
        error, words = type(raised).__name__, getattr(raised, "cause", str(raised))
    return {"error": error, "words": words, "steps": run.steps}


@dataclass
class Claim:
    """How a loop must end: right, or with an error; with these words in the error, or in a warning."""

    loop: Loop
    error: str
    words: tuple[str, ...]

    def ends(self) -> list[dict[str, Any]]:
        """How it ends on this rank: of each watch, and of an error that other ranks should not wait for."""
        torch.manual_seed(0)
        try:
            runs = self.loop()
        except Exception:
            return [{"error": "raised", "words": traceback.format_exc(), "steps": 0}]
        return [ended(run) for run in (runs if isinstance(runs, tuple) else (runs,))]

    def check(self, ends: list[dict[str, Any]]) -> None:
        """Every watch of every rank must end so."""
        assert ends
        for each in ends:
            assert each["error"] == self.error, each
            assert each["error"] or each["steps"], "nothing was compared"
            assert all(word in each["words"] for word in self.words), each


class Claims(dict[str, Claim]):
    """The loops of a file by name, with what is claimed of them: by keyword, or a decorated function."""

    def right(self, *warning: str, **loops: Loop) -> Callable[[Loop], Loop]:
        """It computes what a single device computes; it is warned of something with these words."""
        return self._of("", warning, loops)

    def wrong(self, *cause: str, **loops: Loop) -> Callable[[Loop], Loop]:
        """It does not, and these words say why."""
        return self._of("VerificationError", cause, loops)

    def not_comparable(self, *why: str, **loops: Loop) -> Callable[[Loop], Loop]:
        """It cannot be said, and these words say why."""
        return self._of("NotComparableError", why, loops)

    def _of(self, error: str, words: tuple[str, ...], loops: dict[str, Loop]) -> Callable[[Loop], Loop]:
        assert words or not error

        def add(loop: Loop) -> Loop:
            assert loop.__name__ not in self
            self[loop.__name__] = Claim(loop, error, words)
            return loop

        self.update({name: Claim(each, error, words) for name, each in loops.items()})
        return add


def check_on_two_ranks(module: str, name: str) -> None:
    """The claim of this name in the ``claims`` of a test's module."""
    (by_rank,) = in_ranks(2, __file__, f"ends:{module}:{name}").values()
    import_module(module).claims[name].check([each for of_rank in by_rank for each in of_rank])


def ends(_: ProcessGroup, word: str) -> list[dict[str, Any]]:
    """What each rank calls."""
    module, name = word.split(":")
    found: list[dict[str, Any]] = import_module(module).claims[name].ends()
    return found
