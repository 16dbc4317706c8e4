"""``python WORDS`` in a forked child of a process that has imported torch and mlflow, which takes 6 s.

``command_lines.py`` starts this file as a script. With words it runs them itself, and forks only what they
start. Without, it reads requests from stdin, a JSON object on each line: ``id``, ``words``, ``folder`` (the
working directory), ``environment`` (all of it), ``stdin``, ``stdout`` and ``stderr`` (files). It writes
``{id, pid}`` when the child has started and ``{id, code}`` when it has ended; a negative code is the signal.

A child has everything of its own that a new process has, but for what was imported before. Where it starts
Python itself, as torchrun's agent starts ranks, a sweep its runs and a run its follower, that is forked too.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib.util
import inspect
import itertools
import json
import logging
import os
import pkgutil
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def run_in_fork(
    words: list[str], environment: Mapping[str, str], first: Callable[[], None], held: Sequence[int]
) -> None:
    """``run_and_exit`` in a child of a child, after ``first``: what that one does at its end is left out."""
    atexit._clear()
    first()
    run_and_exit(words, environment, held)


def run_and_exit(words: list[str], environment: Mapping[str, str], held: Sequence[int] = ()) -> None:
    """Run ``python WORDS`` in this new child, flush its output and exit, as the interpreter does.

    Of the parent's open files it keeps those that are ``held``.
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


def set_up(environment: Mapping[str, str], held: Sequence[int]) -> None:
    """Let this child have nothing of its parent's but memory: signals, files, environment, loggers."""
    gc.freeze()  # what the parent has is not freed here: that could close files
    gc.enable()
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


# --- the process ---------------------------------------------------------------------------------------


def preload() -> None:
    """Import what the children would import."""
    import dpexp

    ours = [module.name for module in pkgutil.walk_packages(dpexp.__path__, "dpexp.")]
    for name in (*PRELOADED, *ours):
        if name != RUN_AS_MAIN:
            importlib.import_module(name)
    sys.modules[Path(__file__).stem] = sys.modules["__main__"]
    inspect.getmodule(sys._getframe())  # which lists the files of all modules


def fork(request: dict[str, Any]) -> int:
    """Start a child for a request; its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        os.chdir(request["folder"])
        os.dup2(os.open(request["stdin"], os.O_RDONLY), 0)
        for number, name in enumerate(("stdout", "stderr"), start=1):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_APPEND), number)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    run_and_exit(request["words"], request["environment"])
    raise AssertionError("unreachable")


def ended() -> Iterator[tuple[int, int]]:
    """The process id and exit code of each child that has ended, those that lost their parent included."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found[0], os.waitstatus_to_exitcode(found[1])


def serve() -> None:
    """Answer requests until stdin ends."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    for file in (0, reads):
        selector.register(file, selectors.EVENT_READ)
    numbers: dict[int, int] = {}
    rest = b""
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if reads in ready:
            os.read(reads, 4096)
        if 0 in ready:
            received = os.read(0, 1 << 16)
            if not received:
                return
            *lines, rest = (rest + received).split(b"\n")
            for request in map(json.loads, lines):
                child = fork(request)
                numbers[child] = request["id"]
                print(json.dumps({"id": request["id"], "pid": child}), flush=True)
        for child, code in ended():
            if child in numbers:
                print(json.dumps({"id": numbers.pop(child), "code": code}), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    gc.disable()
    preload()
    gc.freeze()
    gc.enable()
    LEVELS = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
    IMPORTED = set(sys.modules)
    if sys.argv[1:]:
        run_program(sys.argv[1:])
    else:
        prctl(SET_SUBREAPER, 1)
        serve()
        finish(0)
