"""dpexp.prove: somebody's layout beside a single device, in their own process or ranks."""

import math
import pickle
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.launching import AGENT, start_forked, wait
from helpers.printed import write_examples
from torch import nn
from torch.nn.functional import mse_loss

import dpexp
from dpexp.config.errors import ConfigError, NotComparableError, VerificationError
from dpexp.models.linear import Blocks
from dpexp.parallel import DataParallel
from dpexp.report.verification import unreached
from dpexp.verification.trial import NonfiniteError

DEVICES = [torch.device("cpu", 0), torch.device("cpu", 1)]
X, Y = torch.ones(8, 5), torch.ones(8, 2)


def batches(*rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(each, 10), torch.randn(each, 20)) for each in rows or (8, 8, 5)]


def test_a_right_layout_is_verified_and_neither_model_nor_random_state_changes() -> None:
    model, given = Blocks(10, 20, 20), batches()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    result = dpexp.prove(model, DataParallel, given, mse_loss, torch.optim.Adam, devices=DEVICES)
    assert result.passed
    assert result.steps == 3
    for kind in ("outputs", "loss", "gradients", "parameters", "optimizer"):
        error = result.error(kind)
        assert error is not None
        assert error < 1e-12
    verdict, *lines = str(result).splitlines()
    assert verdict == "the same as on a single device; 3 steps in float64"
    assert [line.split()[0] for line in lines] == [*result.worst]
    assert "block1.weight" in str(result) or "block2.weight" in str(result) or "block3.weight" in str(result)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


def test_a_wrong_layout_raises_with_its_first_module() -> None:
    def wrong(model: Any, devices: list[torch.device]) -> nn.Module:
        model.block2.register_forward_hook(lambda module, inputs, outputs: outputs / 2)
        return DataParallel(model, devices)

    with pytest.raises(VerificationError) as caught:
        dpexp.prove(Blocks(10, 20, 20), wrong, batches(), mse_loss, devices=DEVICES)
    error = caught.value
    assert (error.kind, error.step, error.tensor, error.module) == ("outputs", 1, "", "block2")
    assert error.error is not None
    assert error.error > 0.1 > error.limit == 1e-12
    assert "it is 0.5 times the single device's" in error.cause
    assert error.cause in str(error)
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (VerificationError, str(error), vars(error))


def test_batches_that_cannot_be_compared_are_refused() -> None:
    uneven = [(torch.zeros(3, 10), torch.zeros(2, 20))]
    message = r"2 rows into 2 parts, and inputs\[0\] has shape \(3, 10\)"
    for given, words in (([], "there are no batches"), (uneven, message)):
        with pytest.raises(ConfigError, match=words):
            dpexp.prove(Blocks(10, 20, 20), DataParallel, given, mse_loss, devices=DEVICES)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
def test_a_scripted_part_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(10, 20), torch.jit.script(nn.ReLU()))
    with pytest.raises(ConfigError, match=r"^1 of the model is a module of torch\.jit: .* torch\.compile"):
        dpexp.prove(model, DataParallel, batches(), mse_loss, devices=DEVICES)


@pytest.mark.slow
def test_the_example_of_the_docs_proves_a_layout_over_ranks(tmp_path: Path) -> None:
    write_examples("docs/custom-layouts.md", tmp_path)
    root = str(Path(dpexp.__file__).parents[1])
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_layout.py")
    done = wait(start_forked(*AGENT, "4", *options, folder=tmp_path, PYTHONPATH=f"{root}:{tmp_path}"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 4


def test_a_proof_in_which_nothing_can_be_compared_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20, track_running_stats=False))
    with pytest.raises(NotComparableError, match=r"no mode of the model .* its chunks have one row$"):
        dpexp.prove(model, DataParallel, batches(2), mse_loss, devices=DEVICES)


def test_a_loss_that_training_makes_infinite_suggests_a_smaller_learning_rate() -> None:
    for x, lr, words in ((X * math.nan, 0.1, r"is nan in step 1$"), (X, 1e100, "in step 3: try a smaller")):
        make = partial(torch.optim.SGD, lr=lr)
        with pytest.raises(NonfiniteError, match=words):
            dpexp.prove(nn.Linear(5, 2), DataParallel, [(x, Y)] * 3, mse_loss, make, devices=DEVICES)


class Branches(nn.Module):
    """One layer is called and not trained, one is trained and not called, and one is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.apart, self.cut_off = nn.Linear(5, 2), nn.Linear(5, 2), nn.Linear(5, 2)
        self.left_out = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> Any:
        outputs = self.used(x) + nn.functional.linear(x, self.apart.weight, self.apart.bias)
        return outputs + self.cut_off(x).detach()


def test_what_no_step_reaches_is_recorded_and_shown() -> None:
    options: dict[str, Any] = {"devices": "cpu", "steps": 2, "track": False}
    facts = dpexp.run("single", model=Branches(), **options).verification
    names = ["cut_off.weight", "cut_off.bias", "left_out.weight", "left_out.bias"]
    assert facts["unreached"] == {"parameters": names}
    assert unreached(facts).startswith("not verified: parameters cut_off.weight, cut_off.bias, left_out")
