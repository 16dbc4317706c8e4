"""Plan layouts on devices that nobody has yet: does the model fit, and what goes over the wire?"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from dpexp.commands.app import DEBUG, Exit, exit_on_error, make_app, say, show_report
from dpexp.commands.options import OUTPUT, check_environment, examples, with_shared_options
from dpexp.config.errors import as_config_error
from dpexp.config.process import command, home
from dpexp.config.run_config import config_digest
from dpexp.engine.facts import environment
from dpexp.engine.progress import importing_torch
from dpexp.plan.hardware import HARDWARE, devices_of
from dpexp.plan.layout_text import OF_STEP
from dpexp.plan.public import plan as rows_of_plan
from dpexp.record.fold import finish
from dpexp.record.journal import PLAN_STRATEGY, new_run_id, now
from dpexp.record.record import Row
from dpexp.record.runs import begin
from dpexp.report import terminal
from dpexp.report.plan import plan_sections
from dpexp.tracking.store import StoreError
from dpexp.tracking.sync import sync

app = make_app("Plan layouts on devices that nobody has yet, on tensors without data.")
SHARED = ("model", "data", "loss", "reduction", "lr", "seed", "experiment", *OF_STEP)
"""The options of a run that a plan has for all layouts."""
DEVICES = "Devices of the plan"

_Layouts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[STRATEGY…]",
        help="Strategies, each with its options in quotes, as 'fsdp --block layers.* --checkpoint'. Default: "
        "single, whole, ddp, fsdp, and hybrid where the model has embeddings.",
        show_default=False,
    ),
]
_Devices = Annotated[
    str,
    typer.Option(
        "--devices",
        help=f"Number and kind, as 8xH100; or a number, with --memory. Kinds: {', '.join(HARDWARE)}.",
        metavar="NxKIND",
        rich_help_panel=DEVICES,
    ),
]


def _device_option(flag: str, help: str) -> Any:
    return typer.Option(flag, help=help, metavar="SIZE", rich_help_panel=DEVICES, show_default=False)


_Memory = Annotated[str, _device_option("--memory", "Memory of a device, as 24GB or 24GiB.")]
_Flops = Annotated[str | None, _device_option("--flops", "Peak FLOP per second of a device, as 165e12.")]
_Link = Annotated[str | None, _device_option("--link", "Bytes per second that a device sends, as 32e9.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.", rich_help_panel=OUTPUT)]
_Track = Annotated[bool, typer.Option("--track", help="Write the plan to MLflow.", rich_help_panel=OUTPUT)]
_Debug = Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.", rich_help_panel=OUTPUT)]


def plan(
    layouts: _Layouts = None,
    devices: _Devices = "1xH100",
    memory: _Memory = "",
    flops: _Flops = None,
    link: _Link = None,
    as_json: _Json = False,
    track: _Track = False,
    debug: _Debug = False,
    **values: Any,
) -> None:
    """Say what a training step needs in each layout: memory per device, traffic, FLOPs, a bound."""
    del debug  # print_error uses it
    check_environment()
    given = {name: value for name, value in values.items() if value not in (None, "")}
    kind = devices_of(devices, memory, flops, link)
    config = {"strategy": PLAN_STRATEGY, **given, "layouts": layouts or [], "devices": devices}
    config |= {"memory": kind[1].memory, "flops": flops, "link": link}
    with exit_on_error():
        with as_config_error("the start of the plan"), redirect_stdout(sys.stderr), importing_torch():
            where: Row = {"devices": devices, "memory": memory, "flops": flops, "link": link}
            found = rows_of_plan(layouts=layouts or (), quiet=False, **where, **given)
        if as_json:
            say(json.dumps(found, indent=1))
        else:
            show_report(terminal.terminal_text(plan_sections(found, config), piped=terminal.WIDE))
        if track and (code := _tracked(config, found)):
            raise typer.Exit(code)
        if all(row["fits"] is None for row in found):
            raise typer.Exit(Exit.FAILED)


def _tracked(config: Row, rows: list[Row]) -> int:
    """Write the plan as a run, and deliver it; the exit code."""
    facts: Row = {
        "name": f"plan for {config['devices']}",
        "experiment": config["experiment"],
        "strategy": PLAN_STRATEGY,
        "started": now(),
        "config": config | {"track": True},
        "config_digest": config_digest(config),
        "environment": environment(),
        "plan": rows,
    }
    run_id = new_run_id()
    journal = begin(home(), run_id, facts)
    journal.set(status="finished", ended=now())
    journal.close()
    finish(journal.path)
    try:
        results = list(sync(home(), [journal.folder]))
    except StoreError as error:
        say(f"{run_id}: not delivered: {error}; {command('runs')} sync delivers it", err=True)
        return Exit.NOT_DELIVERED
    for result in results:
        say(f"{result.run_id}: {result.message}", err=True)
    return Exit.DONE if all(result.is_well for result in results) else Exit.NOT_DELIVERED


app.command("plan", epilog=examples("plan", "--devices 8xH100", "ddp 'fsdp --checkpoint' --devices 4xA100"))(
    with_shared_options(plan, SHARED)
)
