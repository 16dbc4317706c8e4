"""``python -m dpexp.watch train.py``: run a program as it is, and compare its loop with a single device."""

from __future__ import annotations

import argparse
import io
import os
import sys
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from dpexp.config.errors import ConfigError, text_of
from dpexp.config.run_config import RunConfig
from dpexp.watch.options import Options
from dpexp.watch.script import ScriptWatch

ABOUT = """Run a training script as it is, and compare its loop with a single device. The verdict is printed
on stderr at the end. With ranks: torchrun --nproc-per-node 2 -m dpexp.watch train.py. The exit code is the
script's, or 1 where it ended well and its loop is wrong."""


def main() -> None:
    """Run the program of this command line, and exit. Bad input is a message and exit code 2."""
    parser = argparse.ArgumentParser("python -m dpexp.watch", description=ABOUT, allow_abbrev=False)
    parser.add_argument(
        "--steps", type=int, default=4, metavar="N", help="how many optimizer steps to compare"
    )
    parser.add_argument("--name", help="the name of the run in MLflow")
    parser.add_argument("--no-track", action="store_true", help="write nothing")
    parser.add_argument("script", help="a file of Python")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="those of the script")
    given = parser.parse_args()
    try:
        Options(steps=given.steps)
        RunConfig("single", run_name=given.name or "")
    except ConfigError as error:
        parser.error(text_of(error))
    if not Path(given.script).is_file():
        parser.error(
            f"'{given.script}' is not a file: give the script to run, python -m dpexp.watch train.py"
        )
    watch = ScriptWatch(steps=given.steps, name=given.name, track=not given.no_track)
    sys.exit(1 if watch.run(partial(execute, given.script, given.arguments)) else 0)


def execute(script: str, arguments: list[str]) -> None:
    """What ``python SCRIPT ARGUMENTS`` does; the script stays ``__main__``, also for processes it starts."""
    path, package = os.path.abspath(script), str(Path(__file__).parents[2])
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(path).resolve().parent)
    if package not in sys.path:  # it was found in the working directory
        sys.path.append(package)
    module = ModuleType("__main__")
    vars(module).update(__file__=path, __loader__=SourceFileLoader("__main__", path), __cached__=None)
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(module))


if __name__ == "__main__":
    main()
