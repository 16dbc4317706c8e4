"""Bad values: whatever the value of whatever option is, the answer is a run, or one short message at once."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_values import VALUES, command_line, configs
from command_lines import CommandLines

from dpexp.commands.command_line.config_options import read_config
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig

LINES = 20
SHORT = ["--no-track", "--steps=1", "--warmup=0", "--phase-steps=1"]


def refusal(function: Callable[..., object], *arguments: Any) -> str:
    """The message with which a function refuses its arguments, which is short; empty if it takes them."""
    message = ""
    try:
        function(*arguments)
    except ConfigError as error:
        message = str(error)
    assert len(message) < 5000
    assert len(message.splitlines()) < LINES
    return message


def test_every_value_of_every_option_is_taken_or_refused_in_a_short_message() -> None:
    messages = [refusal(RunConfig.from_dict, config) for config in configs()]
    assert len(messages) > sum(map(bool, messages)) > 2000


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_every_value_in_a_file_is_taken_or_refused_in_a_short_message(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"config{suffix}"
    for value in VALUES:
        for key in ("seed", "model", "strategy", "host", "a" * 50_000):
            try:
                path.write_text(json.dumps({key: value}), encoding="utf-8", errors="surrogatepass")
            except (TypeError, ValueError, RecursionError):
                continue  # JSON has no such value
            refusal(read_config, path, "hybrid")


def test_a_command_line_of_bad_values_ends_in_a_run_or_in_one_message(
    command_lines: CommandLines, tmp_path: Path
) -> None:
    rng = random.Random(0)
    for number in range(20):
        strategy, *rest = command_line(rng)
        home, work = tmp_path / f"home{number}", tmp_path / f"work{number}"
        home.mkdir()
        work.mkdir()
        result = command_lines.run([strategy, *SHORT, *rest], work, DPEXP_HOME=str(home))
        shown = strategy, [word[:80] for word in rest], result.code, result.stderr[:3000]
        assert result.code in (0, 1, 2), shown
        assert "Traceback" not in result.stderr, shown
        assert len(result.stderr.splitlines()) < LINES, shown
        assert (home / "runs").exists() == (result.code != 2 and "--dry-run" not in rest), shown
        assert list(work.iterdir()) == []
