"""The function ``dpexp.plan``: its rows, refusals, and what it leaves behind."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dpexp
from dpexp.plan.hardware import HARDWARE
from dpexp.plan.memory import KINDS

KEYS = (
    *("layout", "devices", "rows", "peak_bytes", "bytes", "peak_module", "sent_bytes", "sent", "flops"),
    *("bound_s", "fits", "most_rows", "why"),
)
DATA = torch.randn(40, 50), torch.randn(40, 10)


class Branching(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if inputs.sum() > 0 else -inputs)


def needs_cuda(model: nn.Module, devices: Any) -> nn.Module:
    assert torch.cuda.is_available(), "this layout needs CUDA"
    return model


def plan(*layouts: str, model: Any = None, devices: str = "1xH100", **options: Any) -> list[dict[str, Any]]:
    model = nn.Linear(50, 10) if model is None else model
    return dpexp.plan(model, DATA, layouts=layouts, devices=devices, batch_size=8, **options)


def test_a_row_has_the_keys_and_the_figures_that_a_hand_computes() -> None:
    single, ddp = plan("single", "ddp", devices="4xH100", optimizer="adam")
    size = 4 * (50 * 10 + 10)
    assert tuple(single) == tuple(ddp) == KEYS
    assert tuple(single["bytes"]) == KINDS
    assert single["peak_bytes"] == sum(single["bytes"].values())
    assert single["bytes"]["parameters"] == single["bytes"]["gradients"] == size
    assert single["bytes"]["optimizer"] >= 2 * size
    assert ddp["bytes"]["gradients"] == 2 * size, "DDP's buckets"
    assert (ddp["devices"], ddp["rows"], ddp["sent_bytes"]) == (4, 2, 2 * 3 / 4 * size)
    assert single["fits"]
    assert single["bound_s"] == single["flops"] / HARDWARE["H100"].flops["float32"]


def test_the_most_rows_fit_and_one_more_does_not() -> None:
    options: dict[str, Any] = {"devices": "1", "memory": "1MB"}
    (row,) = plan("single", **options)
    for more, fits in ((0, True), (1, False)):
        (confirmed,) = plan(f"single --batch-size {row['most_rows'] + more}", **options)
        assert confirmed["fits"] is fits


def test_fewer_rows_that_make_it_fit_are_shown_by_a_plan() -> None:
    options: dict[str, Any] = {"devices": "1", "memory": "1MB"}
    (row,) = plan("single --batch-size 10000", **options)
    remedy = row["why"].partition("fits with ")[2]
    assert remedy.startswith("--batch-size")
    assert plan(f"single {remedy}", **options)[0]["fits"]


def test_batches_are_read_with_their_numbers() -> None:
    batches = [[torch.randn(6, 50), torch.randn(6, 10)] for _ in range(3)]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*DATA), batch_size=6)
    for data in (batches, loader):
        (row,) = dpexp.plan(nn.Linear(50, 10), data, layouts=["single"])
        assert row["fits"], row["why"]


def test_hybrid_is_planned_by_default_for_embeddings() -> None:
    model = nn.Sequential(nn.Embedding(100, 8), nn.Flatten(), nn.Linear(24, 5))
    data = torch.randint(0, 100, (30, 3)), torch.randint(0, 5, (30,))
    rows = dpexp.plan(model, data, F.cross_entropy, devices="2xH100")
    assert [row["layout"] for row in rows] == ["single", "whole", "ddp", "fsdp", "hybrid --host 0"]


def test_eight_billion_parameters_are_planned_without_memory() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(50, 90_000), nn.Linear(90_000, 90_000), nn.Linear(90_000, 10))
    (row,) = plan("single", model=model, dtype="bfloat16", devices="1xB200")
    assert row["bytes"]["parameters"] == 2 * sum(each.numel() for each in model.parameters()) > 16e9


class RowByRow(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(x.isfinite())
        return torch.stack([self[0](row) for row in x])


def test_checks_of_numbers_pass_and_a_search_for_rows_ends_where_they_are_computed_one_by_one() -> None:
    (row,) = plan("single", model=RowByRow(nn.Linear(50, 10)))
    assert (row["fits"], row["most_rows"]) == (True, None)


def test_what_cannot_be_planned_says_why_and_the_others_stand() -> None:
    refused, single = plan(f"custom --layout {__file__}:needs_cuda", "single")
    assert (refused["fits"], single["fits"]) == (None, True)
    assert "this layout needs CUDA" in refused["why"]


def test_nothing_is_left_after_a_plan_or_a_failure() -> None:
    def patched() -> tuple[Any, ...]:
        autograd: Any = torch.autograd
        return torch.UntypedStorage.resize_, autograd._engine_run_backward, F.dropout

    before = patched()
    for row in plan("single", "fsdp", model=Branching(50, 10)):
        assert row["fits"] is None
        assert "the model reads numbers" in row["why"]
    assert plan("fsdp", devices="2xH100")[0]["fits"]
    assert patched() == before
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layouts": ["bogus"]}, "unknown strategy 'bogus'"),
        ({"layouts": [""]}, "unknown strategy ''"),
        ({"layouts": ["custom --layout it's.py:tp"]}, "No closing quotation"),
        ({"layouts": "single"}, "give a list of texts"),
        ({"layouts": [3]}, "give a list of texts"),
        ({"strategy": "ddp"}, "give layouts"),
        ({"devices": 8}, "a kind of device is missing"),
        ({"layouts": ["fsdp --bogus 1"]}, "unrecognized arguments"),
        ({"layouts": ["whole"], "devices": "200xT4"}, "200 devices of one process"),
        (
            {"layouts": ["custom --layout a.py:tp --mesh dp=3"], "devices": "2xT4"},
            "dp=3 has 3 ranks, and 2 run",
        ),
        ({"layouts": ["hybrid"]}, "--host 'embedding' not found"),
        (
            {"layouts": ["single", "fsdp --block nope"], "batch_size": 0},
            "--batch-size 0: it must be at least 1",
        ),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(dpexp.ConfigError, match=message):
        dpexp.plan(nn.Linear(50, 10), DATA, **options)
