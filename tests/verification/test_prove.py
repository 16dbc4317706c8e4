"""dpexp.prove: somebody's layout beside a single device, in their own process or ranks."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.launching import AGENT, start_forked, wait
from helpers.printed import write_examples
from torch import nn

import dpexp
from dpexp.config.errors import ConfigError, VerificationError
from dpexp.devices import accelerators
from dpexp.models.linear import Blocks
from dpexp.parallel import DataParallel

DEVICES = [torch.device("cpu", 0), torch.device("cpu", 1)]


def batches(*rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(each, 10), torch.randn(each, 20)) for each in rows or (8, 8, 5)]


def data_parallel(model: nn.Module, devices: list[torch.device]) -> nn.Module:
    return DataParallel(model, devices)


def test_a_right_layout_is_verified_and_the_model_does_not_change() -> None:
    model = Blocks(10, 20, 20)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = dpexp.prove(
        model, data_parallel, batches(), nn.functional.mse_loss, torch.optim.Adam, devices=DEVICES
    )
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


def test_a_wrong_layout_raises_with_its_first_module() -> None:
    class Halved(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) / 2

    def wrong(model: Any, devices: list[torch.device]) -> nn.Module:
        model.block2.__class__ = Halved
        return DataParallel(model, devices)

    with pytest.raises(VerificationError) as caught:
        dpexp.prove(Blocks(10, 20, 20), wrong, batches(), nn.functional.mse_loss, devices=DEVICES)
    error = caught.value
    assert (error.kind, error.step, error.tensor, error.module) == ("outputs", 1, "", "block2")
    assert error.error is not None
    assert error.error > 0.1 > error.limit == 1e-12
    assert "it is 0.5 times the single device's" in error.cause
    assert error.cause in str(error)


def test_an_error_keeps_its_fields_in_another_process() -> None:
    error = VerificationError("it differs", kind="loss", step=2, module="head", error=0.5, limit=1e-12)
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (VerificationError, "it differs", vars(error))


def test_a_gradient_that_is_missing_is_never_rounding() -> None:
    class Faint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.strong, self.faint = nn.Linear(10, 20), nn.Linear(10, 20)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.strong(inputs) + 1e-13 * self.faint(inputs)
            return outputs

    def frozen(model: Any, devices: list[torch.device]) -> nn.Module:
        model.faint.requires_grad_(False)
        return model  # type: ignore[no-any-return]

    with pytest.raises(VerificationError) as caught:
        dpexp.prove(Faint(), frozen, batches(), nn.functional.mse_loss, devices=DEVICES)
    assert (caught.value.tensor, caught.value.module) == ("faint.weight", "faint")


@pytest.mark.gpu
def test_a_model_that_is_on_a_gpu_is_verified_as_well() -> None:
    gpu = accelerators()[0]
    model = Blocks(10, 20, 20).to(gpu)
    assert dpexp.prove(model, data_parallel, batches(), nn.functional.mse_loss, devices=[gpu]).passed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "there are no batches"),
        (
            [(torch.zeros(3, 10), torch.zeros(2, 20))],
            r"2 rows into 2 parts, and inputs\[0\] has shape \(3, 10\)",
        ),
    ],
)
def test_batches_that_cannot_be_compared_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dpexp.prove(Blocks(10, 20, 20), data_parallel, given, nn.functional.mse_loss, devices=DEVICES)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
def test_a_scripted_part_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(10, 20), torch.jit.script(nn.ReLU()))
    with pytest.raises(ConfigError, match=r"^1 of the model is a module of torch\.jit: .* torch\.compile"):
        dpexp.prove(model, data_parallel, batches(), nn.functional.mse_loss, devices=DEVICES)


@pytest.mark.slow
def test_the_example_of_the_docs_proves_a_layout_over_ranks(tmp_path: Path) -> None:
    write_examples("docs/custom-layouts.md", tmp_path)
    root = str(Path(dpexp.__file__).parents[1])
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_layout.py")
    done = wait(start_forked(*AGENT, "4", *options, folder=tmp_path, PYTHONPATH=f"{root}:{tmp_path}"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 4


def test_a_forward_may_write_to_its_inputs_and_a_loss_to_its_targets() -> None:
    class Centered(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs.sub_(1).div_(2))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs, targets.add_(1))

    given = [(x.double(), y.double()) for x, y in batches()]
    before = [x.clone() for x, _ in given]
    assert dpexp.prove(Centered(10, 20), data_parallel, given, loss, devices=DEVICES).passed
    assert all(torch.equal(x, kept) for (x, _), kept in zip(given, before, strict=True))
