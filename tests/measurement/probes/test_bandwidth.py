"""Bandwidth: what memory and the link give, measured for a hybrid only, and changing nothing of its run."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import recorded
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.devices import HOST
from dpexp.engine import measure
from dpexp.measurement.probes import bandwidth
from dpexp.measurement.probes.bandwidth import link, link_rates, memory, memory_rates
from dpexp.measurement.probes.host_traffic import HostTraffic, observed_traffic
from dpexp.measurement.probes.probe import LEAST, probed
from dpexp.strategies.placed import Placed

SHORT: dict[str, Any] = {"steps": 3, "warmup": 0, "phase_steps": 2, "check": False}


def hybrid(model: str = "embedding:rows=50,dim=8", **options: Any) -> RunConfig:
    return RunConfig("hybrid", model=model, virtual=1, options=options, **SHORT)


def test_a_hybrid_has_the_share_of_what_memory_gives_to_its_lookups(dpexp_home: Path) -> None:
    record = recorded(dpexp_home, hybrid())
    found, stages = record.work["memory"], record.summary["stages"]
    assert (found["bytes"], found["row_bytes"]) == (30 * 8 * 4, 8 * 4)
    rates = found["bytes_per_s"]
    assert rates["n"] >= LEAST
    assert 0 < rates["min"] <= rates["median"] <= rates["max"]
    share = found["bytes"] / (stages["lookup_ms"] / 1000) / rates["max"]
    assert stages["lookup_share"] == pytest.approx(share)
    assert "link" not in record.work, "a virtual device has none"
    assert "copy_share" not in stages


def test_the_probe_changes_nothing_of_a_run(dpexp_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"sparse": True, "pipeline": True}
    probed = recorded(dpexp_home, hybrid(**options), "probed")
    monkeypatch.setattr(measure, "memory", lambda _: {})
    plain = recorded(dpexp_home, hybrid(**options), "plain")
    assert "memory" in probed.work
    assert "memory" not in plain.work
    assert probed.digest == plain.digest
    assert probed.steps["loss"] == plain.steps["loss"]
    assert probed.memory_use == plain.memory_use
    assert {key: value for key, value in probed.work.items() if key != "memory"} == plain.work


def test_a_probe_ends_after_its_time_and_draws_no_number_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.get_rng_state()
    monkeypatch.setattr(bandwidth, "_SECONDS", 0.0)
    monkeypatch.setattr(bandwidth, "TABLE_BYTES", 1 << 16)
    for width, dtype in ((4, torch.float32), (1 << 17, torch.float64), (6, torch.float16)):
        assert len(memory_rates(width, dtype)) == LEAST
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_are_counted_as_often_as_they_are_looked_up() -> None:
    """Those of a bag too, of which fewer vectors come out; a table on the device is not the host's."""
    bag, table = nn.EmbeddingBag(7, 4, mode="sum"), nn.Embedding(5, 2, dtype=torch.float64)
    elsewhere = nn.Embedding(5, 3)
    model, device = nn.ModuleList([bag, table, elsewhere]), torch.device("cpu", 0)
    placed = Placed(model, HOST, device, (HOST, device), host_modules=(bag, table))
    with observed_traffic(placed) as traffic:
        bag(torch.tensor([[1, 1, 2], [3, 1, 1]]))
        table(torch.tensor([4, 4]))
        elsewhere(torch.tensor([1]))
    assert dict(traffic.looked_up) == {bag: 6 * 4 * 4, table: 2 * 2 * 8}
    assert traffic.copied == 2 * 4 * 4 + 2 * 2 * 8
    table(torch.tensor([4, 4]))
    assert traffic.looked_up[table] == 32, "the hooks are gone"
    with observed_traffic(placed) as traffic:
        bag(offsets=torch.tensor([0, 4]), input=torch.tensor([1, 1, 2, 3, 1, 1]))
    assert dict(traffic.looked_up) == {bag: 6 * 4 * 4}


def test_what_is_not_known_is_left_out(dpexp_home: Path, tmp_path: Path) -> None:
    mapped = recorded(dpexp_home, hybrid(sparse=True, table_file=str(tmp_path / "tables")))
    assert "memory" not in mapped.work, "the table may have to be read from a disk"
    ids = {"model": "embedding:rows=50,dim=8", "devices": "cpu"}
    single = recorded(dpexp_home, RunConfig("single", **ids, **SHORT), "single")
    assert not {"memory", "link"} & single.work.keys()
    assert link(HostTraffic(copied=100, device=HOST)) == {}


def test_a_probe_that_fails_does_not_fail_the_run() -> None:
    table = nn.Embedding(5, 4, dtype=torch.float32).to(torch.float8_e4m3fn)
    missing = torch.device("cuda", torch.cuda.device_count())
    on_missing, odd = HostTraffic(copied=100, device=missing), HostTraffic(looked_up=Counter({table: 100}))
    assert probed(link=lambda: link(on_missing)) == {}
    assert probed(memory=lambda: memory(odd)).keys() <= {"memory"}


@pytest.mark.gpu
def test_a_link_is_measured_by_copies_of_the_size_of_a_batch() -> None:
    rates = link_rates(1 << 20, torch.device("cuda", 0))
    assert len(rates) >= LEAST
    assert min(rates) > 0
