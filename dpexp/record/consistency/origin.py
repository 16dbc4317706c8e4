"""Origin: what a Record says of its run, against its config and its times."""

from collections.abc import Iterator
from datetime import datetime

from dpexp.config.run_config import config_digest
from dpexp.record.record import SCHEMA, Record


def _run(record: Record) -> Iterator[str]:
    """Its schema, its end and its error."""
    if record.schema != SCHEMA:
        yield f"schema is {record.schema}, but there is only {SCHEMA}"
    if record.ended is None:
        yield f"ended is not known, but its status is {record.status}"
    elif record.started and datetime.fromisoformat(record.ended) < datetime.fromisoformat(record.started):
        yield f"ended is {record.ended}, before started, {record.started}"
    if record.error and record.status == "finished":
        yield f"error is {record.error.get('message')!r:.60}, but its status is finished"


def _config(record: Record) -> Iterator[str]:
    config = record.config
    if not config.get("strategy"):  # a program's, which has no config
        return
    if config_digest(config) != record.config_digest:
        yield "config_digest is not the SHA-256 of its config"
    if record.strategy != config["strategy"]:
        yield f"strategy is {record.strategy}, but its config says {config['strategy']}"
    if config.get("virtual") and record.execution != "virtual":
        yield f"execution is {record.execution}, but its config says --virtual {config['virtual']}"
    if not config.get("check", True) and record.verification.get("checked"):
        yield "verification.checked is true, but its config says --no-check"
    is_named = config.get("run_name") and not config.get("resume")  # a run that resumes keeps its name
    if is_named and record.name != config["run_name"]:
        yield f"name is {record.name}, but its config says {config['run_name']}"


RULES = (_run, _config)
