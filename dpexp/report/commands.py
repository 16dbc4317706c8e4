"""Commands that look further into a run, and the one that runs it again."""

import shlex
from typing import Any

from dpexp.config.errors import ConfigError
from dpexp.config.factories import live_options
from dpexp.config.options import flag_name, option_fields
from dpexp.config.process import command
from dpexp.config.run_config import FILING, RunConfig, known_options
from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.config.words import plural
from dpexp.record.record import Record
from dpexp.report import layout, units
from dpexp.report.section import Section


def next_commands(record: Record) -> Section:
    """Where the run was, and what to do with it next."""
    runs, git, env = command("runs"), record.environment.get("git") or {}, record.environment
    machine = [
        env.get("host"),
        env.get("cpu"),
        plural(env["threads"], "thread") if env.get("threads") else "",
        units.repeated(layout.accelerator_names(record), ", "),
        f"torch {env['torch']}" if env.get("torch") else "",
    ]
    lines = [f"machine: {', '.join(filter(None, machine)) or 'not recorded'}"]
    if git.get("commit"):
        dirty = ", with uncommitted changes" if git.get("dirty") else ""
        lines.append(f"code: commit {git['commit'][:10]}{dirty}")
    commands = [
        *([("look in MLflow", command("ui"))] if record.is_tracked else []),
        ("show all", f"{runs} show {record.run_id} --full"),
        ("compare", f"{command('report')} {record.run_id} RUN"),
    ]
    if record.is_watched:
        commands.append(("run again", command_of(record)))
    elif used := live_options(record.config):
        lines.append(f"its {' and '.join(used)} came from a Python program: run that again to repeat it")
    else:
        commands += [
            ("run again", command_of(record)),
            ("reproduce", f"{runs} reproduce {record.run_id}"),
        ]
    return Section("Look further", tuple(lines), commands=tuple(commands))


def command_of(record: Record) -> str:
    """``python scripts/run.py whole --virtual 8``; the recorded argv if this dpexp cannot read the config."""
    try:
        config = RunConfig.from_dict(known_options(record.config))
        usual = RunConfig(config.strategy).to_dict()
    except ConfigError:
        return shlex.join(["python", *record.environment.get("argv", [])])
    words = [*command("run").split(), config.strategy]
    chosen = config.to_dict()
    for cls in (RunConfig, STRATEGY_OPTIONS[config.strategy]):
        for field in option_fields(cls):
            if field.name not in FILING and chosen.get(field.name) != usual.get(field.name):
                words += _option(field.name, field.metadata["flag"], chosen[field.name])
    return shlex.join(words)


def _option(name: str, flag: str | None, value: Any) -> list[str]:
    if isinstance(value, bool) and flag:
        yes, no = flag.split("/")
        return [yes if value else no]
    if isinstance(value, list):
        return [word for item in value for word in (flag_name(name), str(item))]
    return [] if value is None else [flag_name(name), str(value)]
