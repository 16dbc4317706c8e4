"""Deliver whole runs past one obstacle each, then without it: each must be in MLflow once and whole.

::

    copy of a run --> sync, or a run itself   while an answer of the server, TLS, a file or the process breaks
                  --> sync                    without that; check
"""

from __future__ import annotations

import contextlib
import functools
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from copied import copy_run, template
from disturbances import read_only, set_limit
from http_faults import FAULTS, HttpFaults
from scene import Scene, copies, embedded, leftovers, wait_until_used
from stores import TLS, dripping_server, locked_database, mlflow_server, tls_server
from tally import Tally

HTTP: dict[str, str] = {
    "HTTP connection that breaks": "reset|reset after it was done|closed before headers|closed after it was done",
    "HTTP answer that is cut": (
        "half of the headers|half of the body|Content-Length too large|Content-Length too small"
        "|JSON that is cut|cut gzip"
    ),
    "HTTP answer that is late": "dripping|late",
    "HTTP status": "400|403|404|500|429 for an hour|redirected to itself",
    "HTTP answer with another content": "{}|{} after it was done|[]|null|wrong types|HTML|not gzip|garbage",
}
"""{kind: the faults of ``http_faults`` that it draws from}."""
ENDPOINTS = (
    "GET /api/2.0/mlflow/experiments/get-by-name",
    "GET /api/2.0/mlflow/experiments/get",
    "POST /api/2.0/mlflow/runs/create",
    "POST /api/2.0/mlflow/runs/search",
    "GET /api/2.0/mlflow/runs/get",
    "POST /api/2.0/mlflow/runs/log-batch",
    "POST /api/2.0/mlflow/runs/update",
    "PUT /api/2.0/mlflow-artifacts/artifacts/*",
)
RUN = (
    "run.py",
    "single",
    "--steps",
    "300",
    "--no-check",
    "--quiet",
    "--track-timeout",
    "30",
    "--threads",
    "1",
)
SHORT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "2", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}


@dataclass(frozen=True)
class Obstacle:
    """What is in the way of a delivery: other variables, a limit, a command in front, a signal after some seconds."""

    how: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    limit: tuple[int, int] | None = None
    prefix: tuple[str, ...] = ()
    number: signal.Signals | None = None
    after_s: float = 0.0


Obstacles = Callable[[Scene, random.Random, int], contextlib.AbstractContextManager[Obstacle]]


@dataclass(frozen=True)
class Kind:
    """How many faults there are, and what makes the obstacle; to ``sync``, or to a run that delivers itself."""

    n: int
    obstacle: Obstacles
    is_run: bool = False


def http(names: str) -> Obstacles:
    """One answer of the server breaks."""

    @contextlib.contextmanager
    def make(scene: Scene, rng: random.Random, port: int) -> Iterator[Obstacle]:
        fault, endpoint = rng.choice(names.split("|")), rng.choice(ENDPOINTS)
        with HttpFaults(port) as proxy:
            proxy.set(endpoint, fault)
            yield Obstacle(f"{fault} of {endpoint}", {"MLFLOW_TRACKING_URI": proxy.address} | SHORT)

    return make


@contextlib.contextmanager
def tls(scene: Scene, rng: random.Random, port: int) -> Iterator[Obstacle]:
    how = rng.choice(TLS)
    with tls_server(scene.home, how) as address:
        yield Obstacle(how, {"MLFLOW_TRACKING_URI": address} | SHORT)


def limit(kind: int, low: int, high: int) -> Obstacles:
    """A limit of ``resource``, drawn between two values."""

    @contextlib.contextmanager
    def make(scene: Scene, rng: random.Random, port: int) -> Iterator[Obstacle]:
        value = int(low * (high / low) ** rng.random())
        yield Obstacle(f"limit {value}", limit=(kind, value))

    return make


def store(make_store: Callable[..., str]) -> Obstacles:
    """Another store, that fails."""

    @contextlib.contextmanager
    def make(scene: Scene, rng: random.Random, port: int) -> Iterator[Obstacle]:
        yield Obstacle(variables={"MLFLOW_TRACKING_URI": make_store(scene.home)})

    return make


@contextlib.contextmanager
def artifacts_read_only(scene: Scene, rng: random.Random, port: int) -> Iterator[Obstacle]:
    yield Obstacle(prefix=read_only(scene.home / "mlruns"))


def signalled(number: signal.Signals) -> Obstacles:
    """A signal at a random moment."""

    @contextlib.contextmanager
    def make(scene: Scene, rng: random.Random, port: int) -> Iterator[Obstacle]:
        after_s = rng.uniform(0.5, 4.5)  # sync takes 4 s and more of processor time, mostly of imports
        yield Obstacle(f"after {after_s:.1f} s", number=number, after_s=after_s)

    return make


TO_SERVER = {f"{kind}, for sync": Kind(4, http(names)) for kind, names in HTTP.items()} | {
    **{f"{kind}, for a run": Kind(3, http(names), is_run=True) for kind, names in HTTP.items()},
    "TLS that fails, for sync": Kind(4, tls),
    "TLS that fails, for a run": Kind(3, tls, is_run=True),
}
TO_FILE = {
    "few file descriptors for sync": Kind(6, limit(resource.RLIMIT_NOFILE, 12, 80)),
    "files that may not grow, for sync": Kind(5, limit(resource.RLIMIT_FSIZE, 1 << 11, 1 << 21)),
    "little memory for sync": Kind(5, limit(resource.RLIMIT_AS, 1 << 28, 2 << 30)),
    "answers that drip, for sync": Kind(3, store(dripping_server)),
    "database that is locked, for sync": Kind(3, store(locked_database)),
    "artifacts that are read-only, for sync": Kind(5, artifacts_read_only),
    "SIGKILL to sync": Kind(6, signalled(signal.SIGKILL)),
    "SIGTERM to sync": Kind(5, signalled(signal.SIGTERM)),
    "SIGINT to sync": Kind(5, signalled(signal.SIGINT)),
}


def deliver_past(
    scene: Scene,
    family: str,
    kinds: Mapping[str, Kind],
    todo: Sequence[str],
    rng: random.Random,
    tally: Tally,
) -> None:
    """Deliver a run past each obstacle, then all without: each must be there once and whole."""
    assert {name for names in HTTP.values() for name in names.split("|")} == FAULTS.keys()
    has_server = kinds is TO_SERVER
    server = mlflow_server(scene.home.with_name("server")) if has_server else contextlib.nullcontext(0)
    with server as port:
        address = f"http://127.0.0.1:{port}" if has_server else embedded(scene.home)
        here = scene.of("soak")
        if has_server:
            here.variables["MLFLOW_TRACKING_URI"] = address
        folder = template(here)
        ends = [_deliver(here, kind, kinds[kind], folder.name, rng, port) for kind in todo]
        codes = [here.run("runs.py", command) for command in ("reap", "sync")]
        found, left = here.check_and_repair(*(run for run, *_ in ends))
        for kind, (run, how, remains, hangs) in zip(todo, ends, strict=True):
            stored = copies(address, run)
            remains += leftovers(here.home / "runs" / run)
            tally.add(
                family,
                kind,
                run,
                found,
                left,
                how=f"{how}; reap and sync {codes}; in MLflow {stored}; left {remains}",
                is_lost=stored < 1 or run in found,
                is_doubled=stored > 1,
                hangs=hangs or here.hangs,
                leaves=bool(remains),
            )


def _deliver(
    scene: Scene, name: str, kind: Kind, run: str, rng: random.Random, port: int
) -> tuple[str, str, list[str], bool]:
    """Deliver one run past its obstacle: the run, how it went, what it left, and whether it hung."""
    here = scene.of(f"delivery {time.time_ns()}")
    with kind.obstacle(scene, rng, port) as obstacle:
        broken = here.of(here.name, prefix=obstacle.prefix, **obstacle.variables)
        set_first = functools.partial(set_limit, *obstacle.limit) if obstacle.limit else None
        if kind.is_run:
            process = broken.start(*RUN, "--run-name", here.name, preexec_fn=set_first)
        else:
            run = copy_run(scene.home / "runs" / run).name
            process = broken.start("runs.py", "sync", run, preexec_fn=set_first)
        if obstacle.number is not None:
            wait_until_used(process, obstacle.after_s)
            process.send_signal(obstacle.number)
        code = broken.wait(process)
        remains = broken.left()
    if kind.is_run:
        (run,) = here.run_ids()
    return run, f"{obstacle.how}; exit code {code}", remains, broken.hangs or here.hangs
