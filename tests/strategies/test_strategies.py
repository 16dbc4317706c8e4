"""The strategies on the tutorials' models: the device of each module, and the rows of each replica."""

from typing import Any

import pytest
import torch
from helpers import named
from torch import nn

from dpexp import devices
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.data.batch import Batch
from dpexp.engine.prepare import prepare
from dpexp.measurement.observe import device_map, observe
from dpexp.record.record import Row
from dpexp.strategies.modules import Wrapper, matching, named_parameters, parts
from dpexp.strategies.placed import Placed
from dpexp.strategies.registry import STRATEGIES
from dpexp.timing import Timer

TUTORIAL = [30, 30, 30, 10]
"""The batches of one epoch: 100 samples, 30 at a time."""


def lay_out(
    strategy: str, *, virtual: int | None, options: Any = None, model: str = "", **more: Any
) -> Placed:
    config = RunConfig(
        strategy,
        virtual=virtual,
        devices="auto" if virtual else "cpu",
        model=model,
        options=options or {},
        **more,
    )
    prepared = prepare(config)
    return prepared.strategy.place(prepared.model, prepared.selection.used, Timer(prepared.selection.used))


def batch_of(inputs: torch.Tensor) -> Batch:
    return Batch((inputs,), None, len(inputs), len(inputs))


def observed(placed: Placed, width: int | None = 5) -> list[Row]:
    inputs = [torch.randn(rows, width) if width else torch.randint(1000, (rows,)) for rows in TUTORIAL]
    return observe(placed, [batch_of(each) for each in inputs], nn.functional.mse_loss)


def split(rows: list[Row], module: str, scope: str) -> list[list[tuple[list[list[int]], list[list[int]]]]]:
    """By batch, the (inputs, outputs) of a module's calls."""
    return [
        [
            (row["inputs"], row["outputs"])
            for row in rows
            if (row["batch"], row["module"], row["scope"]) == (batch, module, scope)
        ]
        for batch in range(len(TUTORIAL))
    ]


def test_every_strategy_is_found_with_its_options_and_its_layout() -> None:
    names = ["single", "whole", "block", "functional", "hybrid", "place", "ddp", "fsdp", "custom"]
    assert list(STRATEGIES) == list(STRATEGY_OPTIONS) == names
    assert [layout.__name__.lower() for layout in STRATEGIES.values()] == names


@pytest.mark.parametrize("strategy", ["whole", "functional"])
@pytest.mark.parametrize(
    ("count", "pieces"),
    [
        (3, [[10, 10, 10]] * 3 + [[4, 4, 2]]),
        (8, [[4, 4, 4, 4, 4, 4, 4, 2]] * 3 + [[2, 2, 2, 2, 2]]),
    ],
)
def test_replicas_get_the_rows_that_the_tutorials_print(
    strategy: str, count: int, pieces: list[list[int]]
) -> None:
    rows = observed(lay_out(strategy, virtual=count))
    assert split(rows, "", "replica") == [[([[n, 5]], [[n, 2]]) for n in of_batch] for of_batch in pieces]
    assert split(rows, "", "outside") == [[([[n, 5]], [[n, 2]])] for n in TUTORIAL]
    of_first = [
        row for row in rows if row["batch"] == 0 and row["scope"] == "replica" and row["module"] == ""
    ]
    assert [(row["replica"], row["device"]) for row in of_first] == [(i, f"cpu:{i}") for i in range(count)]


def test_only_block2_is_split_and_the_others_get_the_full_batch() -> None:
    rows = observed(lay_out("block", virtual=3), width=10)
    for other in ("block1", "block3"):
        assert split(rows, other, "replica") == [[], [], [], []]
        assert [call[0][1] for call in split(rows, other, "outside")] == [[[n, 20]] for n in TUTORIAL]
    assert split(rows, "block2", "replica")[3] == [([[n, 20]], [[n, 20]]) for n in (4, 4, 2)]
    assert split(rows, "block2", "outside") == [[([[n, 20]], [[n, 20]])] for n in TUTORIAL]


def test_hybrid_keeps_the_embedding_on_the_host_and_shows_the_transfer() -> None:
    placed = lay_out("hybrid", virtual=1)
    first = [row for row in observed(placed, width=None) if row["batch"] == 0 and row["module"]]
    assert [(row["module"], row["device"], row["inputs"], row["outputs"]) for row in first] == [
        ("embedding", "cpu", [[30]], [[30, 10]]),
        ("embedding.transfer", "cpu:0", [[30, 10]], [[30, 10]]),
        ("linear", "cpu:0", [[30, 10]], [[30, 10]]),
    ]
    assert {row["module"]: row["device"] for row in device_map(placed)} == {
        "embedding": "cpu",
        "linear": "cpu:0",
    }
    assert (placed.input_device, placed.output_device) == (devices.HOST, torch.device("cpu", 0))


@pytest.mark.parametrize("strategy", ["whole", "block", "functional", "hybrid"])
def test_without_devices_a_wrapper_passes_through(strategy: str) -> None:
    config = RunConfig(strategy, devices="cpu")
    prepared = prepare(config)
    assert prepared.execution == "passthrough"
    placed = prepared.strategy.place(prepared.model, (), Timer())
    batch = next(prepared.batches(0))
    expected = prepare(RunConfig("single", devices="cpu", model=config.model)).model(*batch.inputs)
    assert torch.equal(placed.module(*batch.inputs), expected)
    assert all(row["replicas"] == [] for row in device_map(placed))


class Nested(nn.Module):
    """Two levels, a list, a module of two names, and a parameter at the top."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.tables = nn.ModuleDict({"words": nn.Embedding(50, 4)})
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
        self.again = self.layers[0]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.tables["words"](ids) * self.scale
        for layer in self.layers:
            hidden = layer(hidden)
        return self.again(hidden) + self.layers[0].weight.sum()


@pytest.mark.parametrize("count", [1, 3])
def test_hybrid_wraps_modules_in_containers_and_keeps_the_results(count: int) -> None:
    model, ids = Nested(), torch.arange(12)
    expected = model(ids)
    config = RunConfig("hybrid", virtual=count, options={"host": ["tables.words"]})
    used = devices.virtual(count)
    placed = STRATEGIES["hybrid"](config.options).place(model, used, Timer(used))
    assert torch.allclose(placed.module(ids), expected)
    where = {f"{row['module']}.{row['parameter']}": row["device"] for row in device_map(placed)}
    assert where["tables.words.weight"] == "cpu"
    assert where[".scale"] == where["layers.1.0.weight"] == "cpu:0"
    calls = observe(placed, [batch_of(ids)], nn.functional.mse_loss)
    of_two_names = [row["replica"] for row in calls if row["module"] == "layers.0"]
    assert model.again is model.layers[0]
    assert of_two_names == ([None, None, 0, 0, 1, 1, 2, 2] if count > 1 else [None, None])


def test_a_device_map_places_each_module_and_inserts_transfers() -> None:
    placed = lay_out("place", virtual=2, options={"place": ["block1=cpu", "block[3]=cpu:1"]})
    first = [row for row in observed(placed, width=10) if row["batch"] == 3]
    assert [(row["module"], row["device"], row["inputs"]) for row in first] == [
        ("", "cpu:0", [[10, 10]]),
        ("block1", "cpu", [[10, 10]]),
        ("block1.transfer", "cpu", [[10, 10]]),
        ("block2", "cpu:0", [[10, 20]]),
        ("block2.transfer", "cpu:0", [[10, 20]]),
        ("block3", "cpu:1", [[10, 20]]),
        ("block3.transfer", "cpu:1", [[10, 20]]),
        ("transfer", "cpu:0", [[10, 20]]),
    ]
    assert {row["module"]: row["device"] for row in device_map(placed)} == {
        "block1": "cpu",
        "block2": "cpu:0",
        "block3": "cpu:1",
    }


def test_a_pattern_does_not_match_a_dot() -> None:
    model = Nested()
    assert matching(model, ["layers.*"], "--block") == ("layers.0", "layers.1")
    assert matching(model, ["layers.?.0", "tables.*"], "--block") == ("layers.1.0", "tables.words")
    with pytest.raises(ConfigError, match=r"--block 'nothing\.\*' not found; the model has tables"):
        matching(model, ["nothing.*"], "--block")


class Tied(nn.Module):
    """As in language models, the weight of the head is the table."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 4)
        self.head = nn.Linear(4, 20, bias=False)
        self.head.weight = self.embedding.weight


class Within(nn.Module):
    """Two parts that share a module."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Sequential(nn.Linear(5, 5)), nn.Sequential(nn.Linear(5, 5))
        self.decoder.append(self.encoder[0])


@pytest.mark.parametrize(
    ("strategy", "model", "split", "whole"),
    [
        ("hybrid", Tied, ["embedding"], ["embedding", "head"]),
        ("place", Tied, ["embedding=cpu:0", "head=cpu:1"], ["embedding=cpu:1", "head=cpu:1"]),
        ("place", Within, ["decoder=cpu:1"], ["encoder=cpu:1", "decoder=cpu:1"]),
    ],
)
def test_a_parameter_tied_across_two_devices_is_refused(
    strategy: str, model: Any, split: list[str], whole: list[str]
) -> None:
    def prepare(names: list[str]) -> None:
        options = {"host" if strategy == "hybrid" else strategy: names}
        STRATEGIES[strategy](RunConfig(strategy, options=options).options).prepare(
            model(), devices.virtual(2)
        )

    message = r"'\S+' on \S+ and '\S+' on \S+ are one tied parameter, .* put both modules on one device$"
    with pytest.raises(ConfigError, match=message):
        prepare(split)
    prepare(whole)
    STRATEGIES["whole"](RunConfig("whole").options).prepare(model(), devices.virtual(2))


class Keywords(nn.Module):
    """Calls its submodules with keyword arguments."""

    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * scale

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block2 = nn.Embedding(9, 4), Keywords.Scaled(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input=ids)
        outputs: torch.Tensor = self.block2(x=x, scale=x.mean(1, keepdim=True))
        return outputs


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("block", {}), ("hybrid", {}), ("place", {"place": ("block2=cpu:1",)})],
)
def test_submodules_may_be_called_with_keyword_arguments(strategy: str, options: Any) -> None:
    model, ids = Keywords(), torch.arange(9)
    expected = model(ids)
    config = RunConfig(strategy, virtual=2, options=options)
    used = devices.virtual(2)
    placed = STRATEGIES[strategy](config.options).place(model, used, Timer(used))
    torch.testing.assert_close(placed.module(ids), expected)


def test_wrappers_do_not_change_the_names_of_modules() -> None:
    placed = lay_out("block", virtual=2)
    plain = named.build("blocks")
    assert set(named_parameters(placed.module)) == {name for name, _ in plain.named_parameters()}
    assert {part.name for part in parts(placed.module)} == {name for name, _ in plain.named_modules()}


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["torch", "portable"])
@pytest.mark.parametrize("strategy", ["whole", "block", "functional"])
def test_one_gpu_given_twice_runs_two_replicas(strategy: str, backend: str) -> None:
    gpu = str(devices.accelerators()[0])
    config = RunConfig(strategy, devices=f"{gpu},{gpu}", backend=backend)
    prepared = prepare(config)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer(prepared.selection.used))
    rows = observe(placed, prepared.batches(0), prepared.data.objective.loss)
    module = "block2" if strategy == "block" else ""
    assert [
        (row["replica"], row["device"])
        for row in rows
        if row["batch"] == 3 and row["scope"] == "replica" and row["module"] == module
    ] == [(0, gpu), (1, gpu)]
    wrappers = [part.module for part in parts(placed.module) if isinstance(part.module, Wrapper)]
    is_torchs = [
        isinstance(each, nn.DataParallel) or vars(each).get("library") is nn.parallel for each in wrappers
    ]
    assert any(is_torchs) == (backend == "torch")


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"sparse": True}])
def test_hybrid_puts_the_dense_part_on_the_gpu(options: Any) -> None:
    gpu = devices.accelerators()[0]
    prepared = prepare(RunConfig("hybrid", devices=str(gpu), options=options))
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer(prepared.selection.used))
    outputs = placed.module(torch.arange(30))
    assert outputs.device == gpu
    outputs.sum().backward()
    gradients = {name: each.grad for name, each in named_parameters(placed.module).items()}
    assert gradients["embedding.weight"].device == devices.HOST
    assert gradients["linear.weight"].device == gpu
