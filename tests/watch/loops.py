"""What tests of watched loops have in common: small models and data, a plain training loop, its verdict."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

import dpexp
from dpexp.config.errors import NotComparableError, VerificationError

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
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def seeded(make: Callable[[], nn.Module] = MLP, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def numbers(step: int, micro: int, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (rows, 8) and targets (rows, 4), other ones on each rank."""
    rng = torch.Generator().manual_seed(1000 * (10 * step + micro) + rank())
    return torch.randn(rows, 8, generator=rng), torch.randn(rows, 4, generator=rng)


def alike(step: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same inputs and targets on every rank, as tensor parallelism takes them."""
    rng = torch.Generator().manual_seed(10 * step + micro)
    return torch.randn(6, 8, generator=rng), torch.randn(6, 4, generator=rng)


def tokens(
    step: int, micro: int, ignored: int = 0, length: int = 6, of_rank: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
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


def train(
    run: Any,
    model: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    *,
    steps: int = 3,
    micro: int = 1,
    batch: Callable[[int, int], Any] = numbers,
    share: Callable[[int], float] | None = None,
    during: Callable[[int], AbstractContextManager[Any]] = lambda number: nullcontext(),
    before_step: Callable[[], Any] = lambda: None,
) -> Any:
    """A plain training loop, as users write it: each step has ``micro`` backward passes.

    ``model`` is what the loop calls. ``share`` is what the loss of each micro-batch is multiplied by.
    """
    loss = run.loss or mse
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(micro):
            inputs, labels = batch(step, number)
            with during(number):
                (loss(model(inputs), labels) * (share(number) if share else 1 / micro)).backward()
        before_step()
        optimizer.step()
    return run


def loop(
    model: nn.Module,
    *,
    loss: Callable[..., torch.Tensor] | None = mse,
    clip_norm: float | None = None,
    clips: float | None = None,
    layout: Callable[[nn.Module], Any] = lambda model: model,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    **training: Any,
) -> Any:
    """Watch a model, lay it out, train it. ``clip_norm`` is what is stated, ``clips`` what the loop does."""
    run = watch(model, loss, clip_norm)
    laid_out = layout(model)
    if clips is not None:
        training["before_step"] = clip(laid_out, clips)
    return train(run, laid_out, optimizer(laid_out.parameters()), **training)


def train_by(
    terms: Callable[..., torch.Tensor],
    make: Callable[[], nn.Module] = MLP,
    loss: Callable[..., torch.Tensor] = mse,
    **options: Any,
) -> Any:
    """A loop that minimizes ``terms(loss, model, step)``, as users write it who add up several."""
    run = watch(model := make(), loss, **options)
    for step in steps_of(sgd(model)):
        terms(run.loss, model, step).backward()
    return run


def scaled(
    clip_norm: float = 0.1,
    unscales: bool = True,
    is_fused: bool = False,
    overflows: bool = False,
    layout: Callable[[nn.Module], nn.Module] = lambda model: model,
    cast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Any:
    """A loop with GradScaler and clipping, of two micro-batches a step, as in PyTorch's documentation."""
    run = watch(model := seeded(), mse, clip_norm=clip_norm)
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
        clip(model, clip_norm)()
        scaler.step(optimizer)
        scaler.update()
    return run


def steps_of(optimizer: torch.optim.Optimizer, steps: int = 3) -> Iterator[int]:
    """The steps of a loop whose body does everything between ``zero_grad`` and ``step``."""
    for step in range(steps):
        optimizer.zero_grad()
        yield step
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def clip(model: nn.Module, norm: float) -> Callable[[], Any]:
    return lambda: nn.utils.clip_grad_norm_(model.parameters(), norm)


# --- how they end ---


@dataclass
class Ended:
    """The verdict of a watched loop: the error's name and words, or neither."""

    error: str
    words: str
    warnings: list[str]
    steps: int

    @classmethod
    def of(cls, run: Any) -> Ended:
        error, words = "", ""
        try:
            assert run.verdict() is run
        except (VerificationError, NotComparableError) as raised:
            error, words = type(raised).__name__, getattr(raised, "cause", str(raised))
        return cls(error, words, list(run.warnings), run.steps)


@dataclass
class Claim:
    """How a loop must end: right, or with an error; with these words in the error, or in a warning."""

    loop: Loop
    error: str
    words: tuple[str, ...]

    def ended(self) -> list[Ended]:
        """How it ends on this rank; several watches are several."""
        torch.manual_seed(0)
        runs = self.loop()
        return [Ended.of(run) for run in (runs if isinstance(runs, tuple) else (runs,))]

    def json(self) -> list[dict[str, Any]]:
        """For another process, which is to see every loop, also after one that raises."""
        try:
            every = self.ended()
        except Exception as error:
            every = [Ended(type(error).__name__, traceback.format_exc(), [], 0)]
        return [asdict(each) for each in every]

    def check(self, every: list[Ended]) -> None:
        """Every watch of every rank must end so."""
        assert every
        for ended in every:
            assert ended.error == self.error, ended
            assert ended.error or ended.steps, "nothing was compared"
            shown = ended.words if self.error else " ".join(ended.warnings)
            assert all(word in shown for word in self.words), ended


class Claims(dict[str, Claim]):
    """The loops of a file by name, with what is claimed of them: by keyword, or a decorated function."""

    def right(self, *warning: str, **loops: Loop) -> Callable[[Loop], Loop]:
        """It computes what a single device computes; it is warned of something with these words."""
        return self._of("", warning, loops)

    def wrong(self, *cause: str, **loops: Loop) -> Callable[[Loop], Loop]:
        """It does not, and these words say why."""
        assert cause
        return self._of("VerificationError", cause, loops)

    def not_comparable(self, *why: str, **loops: Loop) -> Callable[[Loop], Loop]:
        """It cannot be said, and these words say why."""
        assert why
        return self._of("NotComparableError", why, loops)

    def _of(self, error: str, words: tuple[str, ...], loops: dict[str, Loop]) -> Callable[[Loop], Loop]:
        def add(loop: Loop, name: str = "") -> Loop:
            name = name or loop.__name__
            assert name not in self
            self[name] = Claim(loop, error, words)
            return loop

        for name, each in loops.items():
            add(each, name)
        return add
