"""Two hosts, as two agents of torchrun on this machine: one run, which the first rank records."""

import time
from pathlib import Path

import pytest
from helpers.launching import SCRIPT, Process, record, run, start_forked, until_step, wait, words
from helpers.servers import free_port

from dpexp.record.fold import load_record

AGENT = ("-P", "-m", "torch.distributed.run", "--nnodes", "2", "--rdzv-backend", "c10d")


def agents(folder: Path, steps: int = 60) -> dict[Path, Process]:
    """The agent of each host by its home; each starts one rank."""
    meeting = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1")
    started = {}
    for number in range(2):
        home = folder / f"host{number}"
        home.mkdir()
        program = (SCRIPT, *words(folder, steps=steps), "--no-track")
        environment = {"DPEXP_HOME": str(home), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        started[home] = start_forked(*AGENT, "--nproc-per-node", "1", *meeting, *program, **environment)
    return started


def test_two_hosts_compute_what_one_computes(tmp_path: Path) -> None:
    done = {home: wait(agent) for home, agent in agents(tmp_path).items()}
    assert [each.returncode for each in done.values()] == [0, 0], done
    (home,) = (home for home, each in done.items() if each.stdout)
    found = record(done[home])
    assert [rank["rank"] for rank in found["devices"]["ranks"]] == [0, 1]
    assert list(tmp_path.glob("host*/runs/*")) == [home / "runs" / found["run_id"]]
    together = record(run(*words(tmp_path), "--devices", "2"))
    assert found["digest"]["weights"] == together["digest"]["weights"]
    assert found["steps"]["loss"] == together["steps"]["loss"]


@pytest.mark.parametrize(
    ("dies", "messages"),
    [
        # whichever notices it first, the rank or its agent
        ("other", ("lost contact with rank 1 on host", "ended by SIGTERM")),
        ("first", ("the process that recorded the run was killed",)),
    ],
)
def test_a_host_that_dies_ends_the_run(tmp_path: Path, dies: str, messages: tuple[str, ...]) -> None:
    started = agents(tmp_path, steps=2000)
    while not (begun := list(tmp_path.glob("host*/runs/*/journal.jsonl"))):
        assert not any(agent.poll() for agent in started.values())
        time.sleep(0.05)
    hosts = {"first": started.pop(begun[0].parents[2]), "other": started.popitem()[1]}
    until_step(begun[0].parents[2], 5, hosts["first"])
    hosts.pop(dies).kill()  # its rank ends with it
    (survivor,) = hosts.values()
    assert wait(survivor).returncode == 1
    found = load_record(begun[0].parent)
    assert (found.status, found.damage, len(found.steps["loss"]) >= 5) == ("killed", [], True)
    assert found.error is not None
    assert found.error["message"].startswith(messages)
