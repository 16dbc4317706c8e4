"""Cases that all ranks of a process group run: ``in_ranks`` asks processes for them that run this file.

A case is a function of a file, ``case(group)``, or ``case(group, word)`` where it is named ``case:word``.
What it returns must be JSON. Each begins with the same random state, and in the environment of its test.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "verification" / "cases"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "watch"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integrations"))

from torch import distributed

from dpexp.config.process import home
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.data.rng import seed_globals
from dpexp.distributed.group import ProcessGroup
from dpexp.record.journal import new_run_id
from dpexp.record.record import Record
from helpers.command_lines import ENVIRONMENT
from helpers.engine_runs import along_mesh, recorded


def in_ranks(ranks: int, file: str, *cases: str) -> dict[str, list[Any]]:
    """What each case returned, by rank. Two ranks stay for the next call: a start takes 6 s of CPU time."""
    some = _KEPT.pop(ranks, None) or Ranks(ranks)
    found = some.run(file, cases)
    if ranks == 2:
        _KEPT[2] = some
    else:
        some.end()
    return dict(zip(cases, map(list, zip(*found, strict=True)), strict=True))


def records(ranks: int, *options: dict[str, Any]) -> list[Record]:
    """The Records of runs with these options in so many ranks, which are in the home of the test, too."""
    found = in_ranks(ranks, __file__, *(f"record:{json.dumps(each)}" for each in options))
    return [Record.from_dict(by_rank[0]) for by_rank in found.values()]


def record(group: ProcessGroup, text: str) -> dict[str, Any]:
    """The Record of a run; on a rank that is not the first, an empty one."""
    config = RunConfig.from_dict(json.loads(text))
    return recorded(home(), config, new_run_id(), group=along_mesh(group, config)).to_dict()


# --- the processes --------------------------------------------------------------------------------------


class Ranks:
    """The processes of one process group, which run cases until one of them raises.

    They are new ones: forked ones ended now and then with a corrupt heap in gloo's threads.
    """

    def __init__(self, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dpexp-ranks-")
        self._printed = open(Path(self._folder.name) / "printed", "w+")  # noqa: SIM115
        words = (sys.executable, __file__, self._folder.name, str(count))
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._printed}
        self._processes = [
            subprocess.Popen([*words, str(rank)], env=os.environ | ENVIRONMENT, text=True, **pipes)
            for rank in range(count)
        ]

    def run(self, file: str, cases: tuple[str, ...]) -> list[list[Any]]:
        """What each rank's cases returned. Where one ends, all are ended, with what they have printed."""
        request = json.dumps({"file": file, "cases": cases, "environment": dict(os.environ | ENVIRONMENT)})
        answers = dict.fromkeys(self._processes, "")
        with ThreadPoolExecutor(len(answers)) as threads:
            asked = {threads.submit(ask, each, request): each for each in self._processes}
            for answer in as_completed(asked):
                answers[asked[answer]] = answer.result()
                if not answer.result():
                    for each in self._processes:
                        each.kill()
        if not all(answers.values()):
            self._printed.seek(0)
            message = f"a rank has ended: {self._printed.read()[-10000:]}"
            self.end()
            raise AssertionError(message)
        return [json.loads(each) for each in answers.values()]

    def end(self) -> None:
        """End all of them."""
        for each in self._processes:
            each.kill()
            each.communicate()
        self._printed.close()
        self._folder.cleanup()


_KEPT: dict[int, Ranks] = {}
atexit.register(lambda: [ranks.end() for ranks in _KEPT.values()])


def ask(process: subprocess.Popen[str], request: str) -> str:
    """The answer of a process; empty if it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(f"{request}\n")
        process.stdin.flush()
    return process.stdout.readline()


def serve(folder: str, size: str, rank: str) -> NoReturn:
    """Be a rank: answer requests until stdin ends; on stderr is what cases print."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= own
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        group = joined(Path(folder) / "store", int(size), int(rank))
        for line in sys.stdin:
            request = json.loads(line)
            os.environ.clear()
            os.environ |= request["environment"] | own
            found = [returned(group, request["file"], *case.split(":", 1)) for case in request["cases"]]
            print(json.dumps(found), file=answers, flush=True)
    os._exit(0)


def joined(store: Path, size: int, rank: int) -> ProcessGroup:
    """The process group of all ranks; they meet in a file."""
    options = RunConfig("ddp").options
    assert isinstance(options, RankOptions)
    timeout, file = timedelta(seconds=options.comm_timeout), distributed.FileStore(str(store), size)
    file.set_timeout(timeout)
    distributed.init_process_group("gloo", timeout=timeout, store=file, rank=rank, world_size=size)
    group = ProcessGroup(options.mesh_of(size))
    group.watch(distributed.PrefixStore("faults", file), options.comm_timeout)
    return group


def returned(group: ProcessGroup, file: str, case: str, *words: str) -> Any:
    """What a case of a file returns."""
    if (folder := str(Path(file).parent)) not in sys.path:
        sys.path.insert(0, folder)
    function = getattr(import_module(Path(file).stem), case)
    seed_globals(0)
    return function(group, *words)


if __name__ == "__main__":
    serve(*sys.argv[1:])
