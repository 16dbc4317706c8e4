"""The MLflow UI of the recorded runs, on loopback, with a link to the runs of each experiment."""

from __future__ import annotations

import contextlib
import signal
from typing import Annotated

import typer

from dpexp.commands.app import Exit, make_app, say
from dpexp.commands.options import examples
from dpexp.config.process import UI_PORT, home
from dpexp.tracking.store import Store, StoreError
from dpexp.tracking.ui import links, server

app = make_app("Show the recorded runs in the MLflow UI.")


@app.command("ui", epilog=examples("ui", "", "--port 5001"))
def ui(
    port: Annotated[
        int, typer.Option(metavar="INTEGER", min=1, max=65535, help="Port to listen on.")
    ] = UI_PORT,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on; 0.0.0.0 admits everyone who can reach this machine.",
        ),
    ] = "127.0.0.1",
) -> None:
    """Serve the runs until Ctrl-C; for a remote MLFLOW_TRACKING_URI only print the links."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    store = Store.from_environment(home())
    try:
        if store.is_server:
            store.open()
            _print_links(links(store, store.pages))
            return
        with contextlib.suppress(KeyboardInterrupt), server(store, host, port) as base:
            _print_links(links(store, base))
            say("Press Ctrl-C to stop.", err=True)
    except StoreError as error:
        say(f"error: {error}", err=True)
        raise typer.Exit(Exit.FAILED) from None


def _end(number: int, frame: object) -> None:
    del number, frame
    raise KeyboardInterrupt


def _print_links(found: list[tuple[str, str]]) -> None:
    for experiment, link in found:
        say(f"{experiment}: {link}")
