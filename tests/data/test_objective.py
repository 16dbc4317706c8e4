"""Objective: the standard loss, one with tensors of its own, and what the losses of shards weigh."""

import collections
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import named
from torch import nn
from torch.nn import functional

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.config.features import PADDING
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective

WEIGHT = torch.tensor([1.0, 2.0, 0.5])


def test_tokens_of_a_rank_are_those_of_its_rows() -> None:
    """A rank without rows computes some as a stand-in, which do not count."""
    objective, targets = Objective(reduction="tokens"), torch.tensor([[1, PADDING], [2, 0]])
    assert objective.tokens(Batch((targets,), targets, rows=2, global_rows=2)) == 3
    assert objective.tokens(Batch((targets,), targets, rows=0, global_rows=1)) == 0
    assert Objective().tokens(Batch((targets,), targets, rows=2, global_rows=2)) is None


# --- standard losses -----------------------------------------------------------------------------


def test_stepwise_loss_is_the_mean_of_the_means_of_rows() -> None:
    outputs = torch.randn(2, 3, 4)
    targets = torch.tensor([[1, 2, 3], [0, PADDING, PADDING]])
    rows = [
        functional.cross_entropy(outputs[0], targets[0]),
        functional.cross_entropy(outputs[1, :1], targets[1, :1]),
    ]
    expected = (rows[0] + rows[1]).item() / 2
    assert Objective().loss(outputs, targets).item() == pytest.approx(expected)
    hits = (outputs.argmax(2) == targets).sum().item()
    assert Objective().accuracy(outputs, targets) == pytest.approx(hits / 4)


@pytest.mark.parametrize("steps", [(7,), (4, 6)])
def test_classes_may_be_in_dimension_one_as_in_pytorch(steps: tuple[int, ...]) -> None:
    outputs, targets = torch.randn(2, 3, *steps), torch.randint(3, (2, *steps))
    expected, hits = (
        functional.cross_entropy(outputs, targets),
        (outputs.argmax(1) == targets).double().mean(),
    )
    for scores in (outputs, outputs.movedim(1, -1)):
        assert Objective().loss(scores, targets).item() == pytest.approx(expected.item())
        assert Objective().accuracy(scores, targets) == pytest.approx(hits.item())


def test_classes_in_one_of_two_dimensions_are_not_guessed() -> None:
    outputs, targets = torch.randn(2, 4, 4), torch.randint(4, (2, 4))
    with pytest.raises(ConfigError, match="may be in dimension 1 or in the last, with targets"):
        Objective().loss(outputs, targets)
    expected = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten()).item()
    assert Objective(classes=4).loss(outputs, targets).item() == pytest.approx(expected)


Named = collections.namedtuple("Named", "logits extra")


@pytest.mark.parametrize("wrap", [lambda t: {"logits": t}, lambda t: Named(t, None), lambda t: (t,)])
def test_logits_are_found_in_containers(wrap: Any) -> None:
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    assert torch.equal(Objective().loss(wrap(outputs), targets), functional.cross_entropy(outputs, targets))


@pytest.mark.parametrize(
    ("outputs", "targets", "words"),
    [
        ({"a": torch.zeros(2)}, torch.zeros(2), "output is a dict, for which there is no standard loss"),
        (torch.zeros(2, 3), torch.zeros(2, 4), r"outputs \(2, 3\) do not fit the targets \(2, 4\)"),
        (torch.zeros(4, 4), torch.zeros(4, 1), r"outputs \(4, 4\) do not fit the targets \(4, 1\)"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), r"they must be \(2, 'classes'\)"),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), "5 classes and the model gives 3 outputs"),
        (torch.zeros(2, 3), {"a": 1}, "targets are a dict"),
    ],
)
def test_error_describes_outputs_without_a_standard_loss(outputs: Any, targets: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Objective(classes=5).loss(outputs, targets)


def test_loss_is_a_registered_name_or_a_factory(tmp_path: Path) -> None:
    (tmp_path / "user_loss.py").write_text(
        "def twice(outputs, targets):\n    return 2 * (outputs - targets).abs().mean()\n"
    )
    outputs, targets = torch.zeros(2, 2), torch.full((2, 2), 3.0)
    texts = {"": 9.0, "l1": 3.0, "huber:delta=2": 4.0, f"{tmp_path / 'user_loss.py'}:twice": 6.0}
    model = named.build("linear")
    found = {
        text: named.source("random", text).dataset(model, 0).objective.loss(outputs, targets).item()
        for text in texts
    }
    assert found == texts
    with pytest.raises(ConfigError, match=r"--loss: unknown loss 'hubr'.*did you mean 'huber'"):
        named.source("random", "hubr")


# --- losses that hold tensors --------------------------------------------------------------------


class Plain(nn.Module):
    """Holds its weights as an attribute that is not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = WEIGHT

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, self.weight)


class Trained(nn.Module):
    """Holds its weights as a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHT, requires_grad=False)

    forward = Plain.forward


LOSSES = {
    "module": nn.CrossEntropyLoss(weight=WEIGHT),
    "attribute": Plain(),
    "parameter": Trained(),
    "partial": partial(functional.cross_entropy, weight=WEIGHT),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_with_tensors_is_computed_where_and_in_the_type_that_the_outputs_are(loss: Any) -> None:
    batches = [(torch.randn(8, 5), torch.arange(8) % 3)]
    result = dpexp.prove(nn.Linear(5, 3), lambda model, devices: model, batches, loss)
    assert (result.passed, result.dtype, list(result.notes)) == (True, torch.float64, [])
    outputs = torch.zeros(4, 3, device="meta")
    found = Objective.of(loss=loss).loss(outputs, torch.zeros(4, dtype=torch.long, device="meta"))
    assert found.device.type == "meta"


def test_the_loss_of_the_user_stays_as_it_was() -> None:
    loss, targets = nn.CrossEntropyLoss(weight=WEIGHT), torch.tensor([0, 2])
    objective = Objective.of(loss=loss)
    for dtype in (torch.float64, torch.float32):
        assert objective.loss(torch.zeros(2, 3, dtype=dtype), targets).dtype is dtype
    with torch.autocast("cpu", torch.bfloat16):  # which casts by itself
        assert objective.loss(torch.zeros(2, 3).bfloat16(), targets).dtype is torch.float32
    assert loss.weight is WEIGHT


# --- the loss inside of outputs ---------------------------------------------------------------------------

LOGITS = torch.randn(4, 3)
LOSS, METRIC = torch.tensor(2.0, requires_grad=True), torch.tensor(1.0)


@pytest.mark.parametrize(
    ("outputs", "place"),
    [
        ((LOSS, LOGITS), 0),
        ((LOGITS, LOSS), 1),
        ([LOGITS, METRIC, LOSS], 2),
        ((LOGITS, None, LOSS), 2),
        ((LOGITS, METRIC), 1),
    ],
)
def test_the_scalar_of_a_tuple_is_the_loss_wherever_it_stands(outputs: Any, place: int) -> None:
    objective, loss = Objective().probed(outputs, None)
    assert loss is outputs[place]
    assert objective.note == (f"the loss is outputs[{place}] of the forward" if place else "")
    shards = [torch.stack([each, each + 2]) if each is outputs[place] else each for each in outputs]
    assert objective.loss(shards, torch.zeros(4)) == outputs[place] + 1, "the mean over two replicas"


def test_without_targets_other_outputs_have_the_rows_that_losses_of_replicas_weigh() -> None:
    objective, loss = Objective().probed({"loss": LOSS, "logits": LOGITS[:3]}, None)
    losses = torch.tensor([1.0, 4.0])
    assert loss is LOSS
    assert objective.loss({"loss": losses, "logits": LOGITS[:3]}, None) == 2, "of two rows and of one"
    with pytest.raises(ConfigError, match="return an output with the rows beside the loss"):
        objective.loss({"loss": losses}, None)


def test_one_of_two_scalars_with_a_gradient_is_not_guessed() -> None:
    for outputs in ((LOSS, 2 * LOSS, LOGITS), (LOGITS, LOSS, 2 * LOSS)):
        with pytest.raises(
            ConfigError, match=r"scalars outputs\[.\], outputs\[.\], and one is the loss: name it"
        ):
            Objective().probed(outputs, None)
    assert Objective().probed({"loss": LOSS, "aux": 2 * LOSS}, None)[1] is LOSS


class Gpt(nn.Module):
    """As nanoGPT: logits of the last step, or with targets those of all and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(30, 8), nn.Linear(8, 30, bias=False)
        self.head.weight = self.table.weight

    def forward(self, idx: torch.Tensor, targets: Any = None) -> Any:
        x = torch.tanh(self.table(idx))
        if targets is None:
            return self.head(x[:, [-1]]), None
        logits = self.head(x)
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def ids() -> Any:
    return [(torch.randint(30, (8, 6)), torch.randint(30, (8, 6))) for _ in range(2)]


def test_a_forward_that_takes_the_targets_returns_the_loss_in_a_run_and_a_proof() -> None:
    short: Any = {"steps": 1, "warmup": 0, "phase_steps": 0, "track": False, "quiet": True}
    found = dpexp.run("whole", model=Gpt(), data=ids(), virtual=2, **short)
    assert found.verification["passed"]
    assert "the loss is outputs[1] of the forward" in found.verification["note"]
    assert dpexp.prove(Gpt(), lambda model, devices: model, ids()).passed


def test_beside_a_named_loss_a_forward_gets_the_targets_of_dicts_only() -> None:
    def loss(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs[0].flatten(0, 1), targets.flatten())

    options: Any = {"model": Gpt(), "loss": loss, "steps": 1, "track": False, "quiet": True}
    with pytest.raises(ConfigError, match=r"the loss does not take the model's outputs \(8, 1, 30\)"):
        dpexp.run("single", data=ids(), **options)
    named = [{"idx": idx, "targets": targets} for idx, targets in ids()]
    assert dpexp.run("single", data=named, warmup=0, phase_steps=0, **options).verification["passed"]
