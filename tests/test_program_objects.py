"""Objects: a program gives its own model, data and loss to ``dpexp.run``, or a file has them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_lines import script
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.engine.prepared import Prepared
from dpexp.engine.torch_facts import object_sha256
from dpexp.record.record import Record
from dpexp.report import summary
from dpexp.study.reproduce import reproduce

SHORT: dict[str, Any] = {"steps": 2, "warmup": 1, "phase_steps": 1, "track": False, "quiet": True}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor, scale: Any = None, shift: Any = None) -> torch.Tensor:
        outputs: torch.Tensor = self.fc(x)
        outputs = outputs if scale is None else outputs * scale.unsqueeze(1)
        return outputs if shift is None else outputs + shift.unsqueeze(1)


class Dicts(Dataset[Any]):
    """Samples as dicts, with the arguments of a forward in another order and one of them left out."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError
        return {"label": torch.zeros(2), "shift": torch.tensor(1.0), "x": torch.full((5,), float(index))}


def pairs(rows: int = 40) -> TensorDataset:
    return TensorDataset(torch.randn(rows, 5), torch.randn(rows, 2))


def squared(outputs: Any, targets: Any) -> torch.Tensor:
    return (outputs - targets).square().mean()


BATCHES = [(torch.randn(rows, 5), torch.randn(rows, 2)) for rows in (16, 16, 8)]
FORMS: dict[str, tuple[Any, int]] = {
    "data set": (pairs(), 30),
    "batches": (BATCHES, 16),
    "tensors": ((torch.randn(40, 5), torch.randn(40, 2)), 30),
    "dicts": (Dicts(), 30),
    "columns": ({"y": torch.randn(40, 2), "x": torch.randn(40, 5)}, 30),
    "inputs alone": (torch.randn(40, 5), 30),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_program_may_give_its_data_in_any_form(form: str, dpexp_home: Path) -> None:
    data, rows = FORMS[form]
    net = Net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    loss = None if form == "inputs alone" else squared
    record = dpexp.run("whole", model=net, data=data, loss=loss, virtual=2, **SHORT)
    assert record.status == "finished"
    assert record.verification["passed"]
    assert record.config["model"] == "dpexp.live:Net"
    assert (record.config["batch_size"], record.data["samples"]) == (rows, 40)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert (form == "inputs alone") == ("the data has no targets" in record.verification["note"])


def test_a_batch_of_few_samples_is_all_of_them_and_the_record_says_so(dpexp_home: Path) -> None:
    data = DataLoader(pairs(10), batch_size=16)
    record = dpexp.run("single", model=Net(), data=data, loss=squared, devices="cpu", **SHORT)
    assert record.config["batch_size"] == 10
    assert set(record.steps["samples"]) == {10}
    assert "batch-size" not in record.verification["note"]


def test_a_record_of_objects_says_so_and_is_not_reproduced(dpexp_home: Path) -> None:
    loss = lambda outputs, targets: squared(outputs, targets)  # noqa: E731
    record = dpexp.run("single", model=Net(), data=BATCHES, loss=loss, devices="cpu", **SHORT)
    assert record.config["loss"] == "dpexp.live:loss"
    shown = summary(record)
    assert "its model and data and loss came from a Python program" in shown
    assert "reproduce" not in shown
    loaded = Record.from_dict(json.loads(record.to_json()))
    with pytest.raises(ConfigError, match=r"--model of run .*run that program again, or put the object"):
        reproduce(loaded)
    with pytest.raises(ConfigError, match=r"dpexp\.live:Net was an object of a Python program"):
        prepare(RunConfig("single", model="dpexp.live:Net", devices="cpu"))


def test_objects_do_not_reach_new_processes() -> None:
    with pytest.raises(ConfigError, match=r"ddp starts new processes, which do not have dpexp\.live:Net"):
        dpexp.run("ddp", model=Net(), virtual=2)


def test_a_list_of_samples_is_not_a_list_of_batches() -> None:
    samples = [(torch.zeros(5), torch.zeros(2)) for _ in range(3)]
    with pytest.raises(ConfigError, match=r"batch 0 has tensors of the shapes \(5,\), \(2,\)\. A list holds"):
        dpexp.run("single", model=Net(), data=samples, **SHORT)


TUTORIAL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class RandomDataset(Dataset):
    def __init__(self, size, length):
        self.len, self.data = length, torch.randn(length, size)
    def __getitem__(self, index):
        return self.data[index]
    def __len__(self):
        return self.len
class Model(nn.Module):
    def __init__(self, input_size, output_size):
        super(Model, self).__init__()
        self.fc = nn.Linear(input_size, output_size)
    def forward(self, input):
        output = self.fc(input)
        print("In Model: input size", input.size(), "output size", output.size())
        return output
rand_loader = DataLoader(dataset=RandomDataset(5, 100), batch_size=30, shuffle=True)
model = Model(5, 2)
for data in rand_loader:
    print("Outside: input size", data.size(), "output size", model(data).size())
"""
"""After S. Kim, "Optional: Data Parallelism", PyTorch tutorials."""


@pytest.mark.usefixtures("dpexp_home")
def test_a_script_runs_as_the_tutorial_writes_it(tmp_path: Path) -> None:
    (tmp_path / "tutorial.py").write_text(TUTORIAL)
    words = ["whole", "--virtual", "3", "--steps", "2", "--warmup", "1", "--phase-steps", "1", "--no-track"]
    words += ["--model", "tutorial.py:model", "--data", "tutorial.py:rand_loader", "--json"]
    done = script("run.py", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["verification"]["passed"]
    assert "the loss is the mean of the squared outputs" in record["verification"]["note"]
    assert "In Model: input size torch.Size([10, 5])" in done.stderr


def prepared(folder: Path, source: str, **options: Any) -> Prepared:
    file = folder / "mine.py"
    file.write_text(f"import torch\nfrom torch import nn\n{source}\n")
    named = {key: value.replace("mine", str(folder / "mine")) for key, value in options.items()}
    return prepare(RunConfig("single", devices="cpu", **named))


@pytest.mark.parametrize(
    ("source", "data", "shape", "words"),
    [
        ("model = nn.Linear(5, 2)", "random", (5,), "of shape (5,), as its first layer itself takes"),
        ("model = nn.Sequential(nn.ReLU(), nn.Linear(7, 2))", "random", (7,), "as its first layer 1 takes"),
        ("model = nn.Conv2d(3, 2, 3)", "random:shape=3x8x8", (3, 8, 8), "random numbers of shape (3, 8, 8)"),
        ("model = nn.Embedding(9, 2)", "random:shape=4", (4,), "random ids below 9 of shape (4,)"),
        ("model = nn.Embedding(9, 2)", "random", (), "random ids below 9 of shape ()"),
    ],
)
def test_random_data_has_the_shape_that_is_given_or_that_the_first_layer_takes(
    tmp_path: Path, source: str, data: str, shape: tuple[int, ...], words: str
) -> None:
    ready = prepared(tmp_path, source, model="mine.py:model", data=data)
    (inputs,) = next(ready.batches(0)).inputs
    assert inputs.shape[1:] == shape
    assert words in ready.note
    assert "the data has no targets" in ready.note


def test_a_shape_that_cannot_be_inferred_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"first layer itself \(Conv2d\) does not say .*random:shape=3x32x32"
    ):
        prepared(tmp_path, "model = nn.Conv2d(3, 2, 3)", model="mine.py:model")
    with pytest.raises(ConfigError, match="shape 'wide' is not a shape"):
        prepared(tmp_path, "", data="random:shape=wide")


def test_a_model_is_built_for_one_sample_of_the_data(tmp_path: Path) -> None:
    source = "data = [{'inputs': torch.zeros(7), 'label': torch.zeros(3)} for _ in range(9)]"
    ready = prepared(tmp_path, source, model="linear", data="mine.py:data")
    assert ready.model.fc.weight.shape == (3, 7)


@pytest.mark.parametrize(
    "source",
    [
        "data = torch.zeros(9, 5), torch.zeros(9, 2)",
        "def data():\n    return torch.zeros(9, 5), torch.zeros(9, 2)",
        "rows = [(torch.zeros(5), torch.zeros(2))] * 9\ndata = rows, rows",
    ],
)
def test_a_file_may_hold_its_data_in_any_form(tmp_path: Path, source: str) -> None:
    ready = prepared(tmp_path, source, model="linear", data="mine.py:data")
    batch = next(ready.batches(0))
    assert [tuple(batch.inputs[0].shape), tuple(batch.targets.shape)] == [(9, 5), (9, 2)]
    assert (ready.data.test is not None) == ("rows" in source)
    with pytest.raises(ConfigError, match="takes no option"):
        prepared(tmp_path, source, model="linear", data="mine.py:data:rows=3")


def test_another_class_of_one_structure_has_another_digest() -> None:
    class Same(Net):
        pass

    class Other(Net):
        def forward(self, x: torch.Tensor, scale: Any = None, shift: Any = None) -> torch.Tensor:
            return super().forward(x) * 2

    values = (Net(), Net(), Same(), Other(), squared, lambda outputs, _: outputs.sum())
    digests = [object_sha256(value) for value in values]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5


class OwnLoss(nn.Module):
    """A language model as those of Hugging Face: with labels its forward returns a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 7)

    def forward(self, ids: torch.Tensor, mask: Any = None, labels: Any = None) -> dict[str, torch.Tensor]:
        logits = self.embed(ids)
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def test_a_model_that_returns_its_loss_gets_its_labels(dpexp_home: Path) -> None:
    net, ids = OwnLoss(), torch.arange(24).reshape(4, 6) % 7
    expected = net(ids, labels=ids)["loss"].item()
    data = [{"ids": ids, "labels": ids}]
    record = dpexp.run("single", model=net, data=data, devices="cpu", **{**SHORT, "warmup": 0, "steps": 1})
    assert record.steps["loss"][0] == pytest.approx(expected)
    assert dpexp.run("whole", model=net, data=data, virtual=2, **SHORT).verification["passed"]
