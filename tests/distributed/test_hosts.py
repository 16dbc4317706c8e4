"""Two hosts, as two agents of torchrun on this machine: one run, which the first rank records."""

from pathlib import Path

from launching import SCRIPT, Process, record, run, start_forked, wait, words
from servers import free_port

AGENT = (
    "-P",
    "-m",
    "torch.distributed.run",
    "--nnodes",
    "2",
    "--nproc-per-node",
    "1",
    "--rdzv-backend",
    "c10d",
)


def agents(folder: Path, *options: str, steps: int = 60) -> list[Process]:
    """The agents of two hosts, each with a home of its own."""
    meeting = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1", *options)
    started: list[Process] = []
    for host in ("a", "b"):
        (folder / host).mkdir()
        command = (*AGENT, *meeting, SCRIPT, *words(folder, steps=steps), "--no-track")
        home = {"DPEXP_HOME": str(folder / host), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        started.append(start_forked(*command, **home))
    return started


def recorded(folder: Path) -> Path:
    """The home of the host that has the run: of the one with the first rank."""
    (home,) = (folder / host for host in ("a", "b") if list((folder / host).glob("runs/*")))
    return home


def test_two_hosts_compute_what_one_computes(tmp_path: Path) -> None:
    done = [wait(agent) for agent in agents(tmp_path)]
    assert [each.returncode for each in done] == [0, 0], done
    (printed,) = (each for each in done if each.stdout)
    found = record(printed)
    assert [rank["rank"] for rank in found["devices"]["ranks"]] == [0, 1]
    assert [path.name for path in (recorded(tmp_path) / "runs").iterdir()] == [found["run_id"]]
    together = record(run(*words(tmp_path), "--devices", "2"))
    assert found["digest"]["weights"] == together["digest"]["weights"]
    assert found["steps"]["loss"] == together["steps"]["loss"]
