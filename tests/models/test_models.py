"""Models: each is built by its name for the data, is equal for equal seeds, and learns its task."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import named
from helpers.command_lines import ROOT
from helpers.engine_runs import recorded
from torch import nn

from dpexp.config.factories import find
from dpexp.config.features import Features
from dpexp.config.run_config import RunConfig
from dpexp.models.registry import MODELS
from dpexp.tensors import shapes

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = sorted(MODELS)
SEQUENCE_MODELS = ["rnn", "transformer"]


def built(text: str, features: Features | None = None, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return named.build(text, features)


def description(model: nn.Module) -> Any:
    """The shapes of its parameters, of samples and of what it makes of them, and the sum of that."""
    batch = next(named.source("random").dataset(model, 0).batches(30))
    outputs = model(*batch.inputs)
    return shapes((*model.parameters(), batch.inputs, outputs)), outputs.sum().item()


# --- every model ---------------------------------------------------------------------------------


def test_registries_import_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, dpexp.models.registry, dpexp.data.registry\n"
        "from dpexp.config.factories import find\n"
        "for text in ('linear:in=4', 'a.b:c'): find('--model', text, dpexp.models.registry.MODELS)\n"
        "print([name for name in ('torch', 'numpy', 'mlflow', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_build_equal_weights_of_every_option(name: str) -> None:
    """And every argument of its class is an option that changes the model."""
    plain, same, other = built(name), built(name), built(name, seed=1)
    pairs = [*zip(plain.parameters(), same.parameters(), other.parameters(), strict=True)]
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    for key, option in inspect.signature(find("--model", name, MODELS).load()).parameters.items():
        value = not option.default if option.default is True else option.default * 2 or 8
        changed = built(f"{name}:{key.rstrip('_')}={value}")
        assert description(changed) != description(plain), key


# --- shapes --------------------------------------------------------------------------------------


def test_dlrm_looks_each_column_up_in_its_own_table() -> None:
    """By one operation: the time of a small batch is that of the operations, whatever the tables are."""
    model = built("dlrm:tables=3,rows=16,dim=4")
    tables = model.embedding.table.weight.split(16)  # type: ignore[union-attr, operator]
    ids = torch.tensor([[0, 5, 15], [15, 0, 1]])
    expected = torch.stack([table[column] for table, column in zip(tables, ids.T, strict=True)], 1)
    assert torch.equal(model.embedding(ids), expected)  # type: ignore[operator]
    assert len([*model.embedding.parameters()]) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [-1, 16, 31, 10**6])
def test_id_beyond_a_fused_table_is_not_a_row_of_the_next(wrong: int) -> None:
    model = built("dlrm:tables=2,rows=16,dim=4")
    with pytest.raises(IndexError, match="index out of range"):
        model.embedding(torch.tensor([[3, 5], [wrong, 0]]))  # type: ignore[operator]


# --- sequences -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stepwise", [True, False])
@pytest.mark.parametrize("name", SEQUENCE_MODELS)
def test_values_after_the_end_of_a_sequence_do_not_count(name: str, stepwise: bool) -> None:
    model = built(f"{name}:stepwise={stepwise}").double()
    lengths = torch.tensor([3, 12, 1])
    one = torch.randn(3, 12, 8, dtype=torch.float64)
    two = one.clone()
    for row, length in enumerate(lengths):
        two[row, length:] = 9.0
    outputs = model(one, lengths), model(two, lengths)
    if stepwise:
        outputs = tuple(torch.cat([o[r, :n] for r, n in enumerate(lengths)]) for o in outputs)
    assert torch.allclose(*outputs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SEQUENCE_MODELS)
def test_step_does_not_depend_on_later_steps(name: str) -> None:
    model = built(f"{name}:vocabulary=50").double()
    one = torch.randint(50, (2, 12))
    two = one.clone()
    two[:, 6:] = 0
    assert torch.allclose(model(one)[:, :6], model(two)[:, :6], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(model(one)[:, 6:], model(two)[:, 6:])


# --- options from the data -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "features", "expected"),
    [
        ("linear", Features("image", (1, 8, 8), classes=10), {"fc": (64, 10)}),
        ("linear:out=3", Features("image", (1, 8, 8), classes=10), {"fc": (64, 3)}),
        ("linear", Features("vector", (7,), targets=3), {"fc": (7, 3)}),
        ("linear", None, {"fc": (5, 2)}),
    ],
)
def test_features_decide_the_options_that_are_not_given(
    text: str, features: Features | None, expected: dict[str, tuple[int, int]]
) -> None:
    children = built(text, features).named_children()
    assert {name: (part.in_features, part.out_features) for name, part in children} == expected


# --- learning ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "epochs", "lr", "wanted"),
    [
        ("cnn", 6, 0.1, 0.95),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("capsnet", 6, 2.0, 0.96),
                ("mlp", 5, 0.1, 0.9),
                ("rnn", 8, 0.5, 0.9),
                ("transformer", 8, 0.1, 0.85),
            )
        ),
    ],
)
def test_every_model_learns_digits_on_replicas(
    model: str, epochs: int, lr: float, wanted: float, dpexp_home: Path
) -> None:
    config = RunConfig("whole", virtual=2, model=model, data="digits", epochs=epochs, lr=lr)
    record = recorded(dpexp_home, config)
    assert len(record.metrics["accuracy"]) == epochs
    assert record.metrics["accuracy"][-1] >= wanted
