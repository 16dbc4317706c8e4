"""Module calls: each module once, under its first name, and the call in which an exception was raised."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import torch
from helpers.command_lines import PATIENCE_S
from torch import nn

from dpexp.parallel import DataParallel
from dpexp.strategies.module_calls import ModuleCall, module_calls, running_calls


class Catches(nn.Module):
    """Calls a module twice, by two names, and goes on after an exception of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.again = nn.Linear(3, 3)
        self.refuses = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with suppress(RuntimeError):
            self.refuses(x)
        outputs: torch.Tensor = self.again(input=self.first(x))
        return outputs


def test_a_call_has_its_name_inputs_outputs_and_replica() -> None:
    calls = list[ModuleCall]()
    model = nn.Sequential(Catches())
    placed = DataParallel(model, [torch.device("cpu", 0), torch.device("cpu", 1)])
    with module_calls(placed, left=calls.append):
        placed(torch.ones(4, 3))
    of_linear = [call for call in calls if call.name == "0.first" and call.replica == 1]
    assert [len(call.inputs[0]) for call in of_linear] == [1, 0]
    assert of_linear[1].inputs[1]["input"] is of_linear[0].outputs
    assert [(call.name, call.level) for call in calls][-2:] == [("", 1), ("", 0)], "the wrapper comes last"
    calls.clear()
    placed(torch.ones(4, 3))
    assert calls == []


def test_an_exception_that_the_model_catches_leaves_the_calls_around_it() -> None:
    model, seen = Catches(), list[list[str]]()
    with running_calls(model, lambda: seen.append([call.name for call in running])) as running:
        model(torch.ones(4, 3))
        assert running == []
    assert seen[:4] == [[], [""], ["", "refuses"], ["", "refuses", "first"]]


def test_a_model_may_call_its_modules_in_threads() -> None:
    both = Barrier(2, timeout=PATIENCE_S)
    layers = [nn.Sequential(nn.Linear(3, 3)) for _ in range(2)]
    for layer in layers:
        layer[0].register_forward_hook(lambda *_: both.wait() and None)

    class Threaded(nn.ModuleList):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            with ThreadPoolExecutor(2) as threads:
                return list(threads.map(lambda layer: layer(x), self))

    model = Threaded(layers)
    with running_calls(model) as running:
        assert len(model(torch.ones(4, 3))) == 2
    assert running == []
