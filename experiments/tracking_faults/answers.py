"""Deliver runs to an MLflow server through a proxy that breaks one answer, in ``soak.py``."""

from __future__ import annotations

import random

import typer
from http_faults import FAULTS, HttpFaults
from scene import Scene, copies, leftovers
from stores import mlflow_server
from tally import Tallies, Tally, scaled

KINDS: dict[str, tuple[int, str]] = {
    "HTTP connection that breaks": (
        6,
        "reset|reset after it was done|closed before headers|closed after it was done",
    ),
    "HTTP answer that is cut": (
        6,
        "half of the headers|half of the body|Content-Length too large|Content-Length too small"
        "|JSON that is cut|cut gzip",
    ),
    "HTTP answer that is late": (4, "dripping|late"),
    "HTTP status": (6, "400|403|404|500|429 for an hour|redirected to itself"),
    "HTTP answer with another content": (
        8,
        "{}|{} after it was done|[]|null|wrong types|HTML|not gzip|garbage",
    ),
}
"""{kind: (how many of 200, the faults of ``http_faults`` that it draws from)}."""
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


def break_answers(scene: Scene, faults: int, rng: random.Random) -> Tallies:
    """Run with one broken answer, then ``sync`` straight to the server: there once and whole."""
    assert {name for _, names in KINDS.values() for name in names.split("|")} == FAULTS.keys()
    plan = [(kind, names.split("|")) for kind, (n, names) in KINDS.items() for _ in range(scaled(n, faults))]
    tallies: Tallies = {}
    with mlflow_server(scene.home.with_name("server")) as port:
        server = f"http://127.0.0.1:{port}"
        for number, (kind, names) in enumerate(plan):
            fault, endpoint = rng.choice(names), rng.choice(ENDPOINTS)
            here = scene.of(f"answer {number}", MLFLOW_TRACKING_URI=server)
            with HttpFaults(port) as proxy:
                proxy.set(endpoint, fault)
                short = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "2", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
                broken = here.of(here.name, MLFLOW_TRACKING_URI=proxy.address, **short)
                code = broken.run(*RUN, "--run-name", here.name)
                left = broken.left()
            synced = here.run("runs.py", "sync")
            found = here.check()
            (run,) = here.run_ids()
            stored = copies(server, run)
            tallies.setdefault(kind, Tally()).count(
                run,
                found,
                found,
                is_lost=stored < 1 or code not in (0, 3) or synced != 0 or run in found,
                is_doubled=stored > 1,
                hangs=broken.hangs or here.hangs,
                leaves=bool(left or leftovers(here.home / "runs" / run)),
            )
            typer.echo(f"{kind}: {fault} of {endpoint}: {code}, {synced}, {stored} {found} {left}", err=True)
    return tallies
