"""``python WORDS`` in a child of a process that has imported torch and mlflow, which takes 6 s.

The process is a fork server of ``multiprocessing``, which imports ``preloaded.py`` at its start.
``command_lines.py`` lets it call ``run_command``. A child has everything of its own that a new process has,
but for what was imported before. Where it starts Python itself, as torchrun's agent starts ranks, a sweep its
runs and a run its follower, that is forked too.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib.util
import inspect
import itertools
import logging
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = (
    "git",  # by MLflow
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.tracking",
    "numpy",
    "PIL.PngImagePlugin",
    "rich.emoji",
    "shellingham",
    "torch._dynamo",  # by the first optimizer of PyTorch itself
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "torch.utils.flop_counter",
    "torch.utils.serialization.config",
)
"""What a child would import first; and all modules of dpexp, but one that a child runs with ``-m``."""
RUN_AS_MAIN = "dpexp.tracking.follower"
NEW_PROCESSES = ("mlflow",)
"""Modules that run in a new process always: a server starts more, and they are not ours."""
SET_NAME, SET_SUBREAPER = 15, 36  # of prctl


class ForkingPopen(subprocess.Popen[Any]):
    """``subprocess.Popen``, which forks where the command is a Python program."""

    def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
        words = python_words(args)
        if words is not None:
            environment, held = options.get("env") or os.environ, options.get("pass_fds", ())
            first = options.get("preexec_fn") or (lambda: None)
            options["preexec_fn"] = functools.partial(run_in_fork, words, dict(environment), first, held)
        super().__init__(args, *rest, **options)


def python_words(args: object) -> list[str] | None:
    """The words after ``python`` and its flags of a command that may run in a fork."""
    if not isinstance(args, Sequence) or isinstance(args, str) or args[0] != sys.executable:
        return None
    words = without_flags([str(word) for word in args[1:]])
    if words[:1] == ["-m"] and words[1].startswith(NEW_PROCESSES):
        return None
    if "RANK" in os.environ:  # a rank has threads and sockets of torch, which no child of it may have
        return None
    is_program = words[:1] in (["-c"], ["-m"]) or (words and words[0].endswith(".py"))
    return words if is_program else None


def without_flags(words: list[str]) -> list[str]:
    """The words after the flags that change nothing here."""
    return list(itertools.dropwhile(lambda word: word in ("-P", "-u"), words))


# --- in the child --------------------------------------------------------------------------------------


def run_command(words: list[str], folder: str, environment: Mapping[str, str], files: Sequence[str]) -> None:
    """Run ``python WORDS`` in a folder with these files as stdin, stdout and stderr."""
    os.chdir(folder)
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR | os.O_APPEND), number)
    run_and_exit(words, environment)


def run_in_fork(
    words: list[str], environment: Mapping[str, str], first: Callable[[], None], held: Sequence[int]
) -> None:
    """``run_and_exit`` in a child of a child, after ``first``: what that one does at its end is left out."""
    atexit._clear()
    first()
    run_and_exit(words, environment, held)


def run_and_exit(words: list[str], environment: Mapping[str, str], held: Sequence[int] | None = None) -> None:
    """Run ``python WORDS`` in this new child, flush its output and exit, as the interpreter does.

    Of the parent's open files it keeps those that are ``held``; None: the fork server has closed the others.
    """
    code = 1
    try:
        set_up(environment, held)
        run_program(words)
        code = 0
    except SystemExit as end:
        code = exit_code(end)
    except BaseException as error:
        sys.last_value = error
        traceback.print_exc()
    finally:
        finish(code)


def finish(code: int) -> None:
    """End this process as the interpreter does, but for freeing what is in memory, which takes 2 s."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def exit_code(end: SystemExit) -> int:
    """The exit code of a SystemExit, whose text is printed."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def set_up(environment: Mapping[str, str], held: Sequence[int] | None) -> None:
    """Let this child have nothing of its parent's but memory: signals, files, environment, loggers."""
    gc.freeze()  # what the parent has is not freed here: that could close files
    gc.enable()
    if held is not None:
        for low, high in itertools.pairwise([2, *sorted(held), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(low + 1, high)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = PATH
    tempfile.tempdir = None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
        setattr(sys, f"__{name}__", getattr(sys, name))
    for name, level in LEVELS.items():
        if (logger := logging.getLogger(name)).level != level:  # setLevel visits all loggers
            logger.setLevel(level)
    if len(sys.modules) > len(IMPORTED):
        for name in sys.modules.keys() - IMPORTED:
            if name.startswith("dpexp_user_"):
                del sys.modules[name]
    weakref.finalize._registry = {}  # type: ignore[attr-defined]  # the parent's, not to be called here
    rank = f"rank {environment['RANK']}" if "RANK" in environment else "python"
    prctl(SET_NAME, ctypes.c_char_p(rank.encode()))


def run_program(words: list[str]) -> None:
    """Run what ``python WORDS`` runs, as ``__main__``.

    Not with runpy: torchrun's agent looks the module of each frame up often, and runpy's frames have none.
    """
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    first, *rest = without_flags(words)
    main: Any = types.ModuleType("__main__")
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        code = compile(rest[0], "<string>", "exec")
    elif first == "-m":
        sys.path.insert(0, str(Path.cwd()))
        spec: Any = importlib.util.find_spec(rest[0])
        if spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{rest[0]}.__main__")
        main.__spec__ = spec
        main.__package__, main.__loader__, main.__file__ = spec.parent, spec.loader, spec.origin
        sys.argv = [spec.origin, *rest[1:]]
        code = spec.loader.get_code(spec.name)
    else:
        sys.argv = [first, *rest]
        sys.path.insert(0, str(Path(first).parent))
        main.__file__ = first
        code = compile(Path(first).read_bytes(), first, "exec")
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def prctl(option: int, value: Any) -> None:
    """Linux' prctl; no effect elsewhere."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


# --- the fork server -----------------------------------------------------------------------------------

LEVELS: dict[str, int] = {}
IMPORTED: set[str] = set()
PATH: list[str] = []
"""What loggers, modules and ``sys.path`` were after the imports."""


def preload() -> None:
    """Import what the children would import; have their orphans as children; fork where Python is started."""
    import dpexp

    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    prctl(SET_SUBREAPER, 1)
    gc.disable()
    ours = [module.name for module in pkgutil.walk_packages(dpexp.__path__, "dpexp.")]
    for name in (*PRELOADED, *ours):
        if name != RUN_AS_MAIN and not name.startswith("dpexp.integrations."):  # of other packages
            importlib.import_module(name)
    inspect.getmodule(sys._getframe())  # which lists the files of all modules
    gc.freeze()
    gc.enable()
    LEVELS.update({name: logging.getLogger(name).level for name in logging.root.manager.loggerDict})
    IMPORTED.update(sys.modules)
    PATH.extend(folder for folder in sys.path if folder)
