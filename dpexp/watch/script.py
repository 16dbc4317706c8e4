"""Script: a program that nobody edits, whose model is found when it is laid out or trained.

    what the program calls                          what is watched
    Trainer of Transformers, or of Lightning        what the callback of ``dpexp.integrations`` watches
    DistributedDataParallel, DataParallel, FSDP,    the model that is given, before anything is done to it;
    fully_shard, parallelize_module, prepare        of a part the outermost module that holds it
    an optimizer, and then that module in training  the module that holds most of the optimizer's parameters

The first of these counts. Each is replaced when the program imports its package; nothing is imported for it.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial, reduce, wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dpexp.config.errors import describe
from dpexp.config.printable import printable
from dpexp.config.words import listed
from dpexp.record.redact import redact
from dpexp.watch.public import watch

if TYPE_CHECKING:
    from torch import nn

    from dpexp.watch.loop import WatchedLoop

Function = Callable[..., Any]
LAYOUTS = {
    "torch": ("nn.DataParallel", "nn.parallel.DistributedDataParallel"),
    "torch.distributed.fsdp": ("fully_shard", "FullyShardedDataParallel"),
    "torch.distributed.tensor.parallel": ("parallelize_module",),
    "accelerate": ("Accelerator.prepare",),
}
"""What is given a model before it is laid out, by the package that has it."""
TRAINERS = {
    "transformers.trainer": "transformers",
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
}
"""The module of each Trainer, and that of its callback in ``dpexp.integrations``."""


class ScriptWatch:
    """The watch of one program; ``wanted`` are ``steps``, ``name`` and ``track`` of ``dpexp.watch``."""

    def __init__(self, **wanted: Any) -> None:
        self._wanted, self._pid = wanted, os.getpid()
        self._rank = int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)
        self._run: WatchedLoop | None = None
        self._model: nn.Module | None = None
        self._is_over, self._how = False, ""
        self._note = "no model was laid out, given to a Trainer or held by an optimizer"
        self._others: dict[str, None] = {}
        self._losses: dict[Function, Function] = {}
        self._callbacks: list[Any] = []
        self._processes: TemporaryDirectory[str] | None = None

    def run(self, program: Callable[[], Any]) -> bool:
        """Run the program to its end, and print the verdict; whether its loop is wrong.

        Raises what the program raises, also SystemExit if it has failed.
        """
        then: dict[str, Callable[[], None]] = {name: partial(self._replace_layouts, name) for name in LAYOUTS}
        then |= {name: partial(self._replace_trainer, name) for name in TRAINERS}
        for name in [each for each in then if each in sys.modules]:
            then.pop(name)()
        sys.meta_path.insert(0, _Imports(then))
        sys.modules["dpexp"].__dict__["watch"] = self._watch_of_program
        _replace_popen(self._wanted)
        try:
            program()
        except BaseException as error:
            if not isinstance(error, SystemExit) or error.code:
                self._end(error)
                raise
        return self._end(None)

    def _end(self, error: BaseException | None) -> bool:
        if os.getpid() != self._pid:  # the program has forked
            return False
        run = next((each.run for each in self._callbacks if each.run is not None), self._run)
        if run is not None:
            run.close(error)
        notes = [note for each in self._callbacks if (note := getattr(each, "note", ""))]
        lines = [f"nothing was watched: {[*notes, self._note][0]}" if run is None else str(run)]
        lines += [f"watched: {self._how}"] if self._run is not None else []
        others = f"not watched, so that losses are not compared: {listed(self._others)}"
        lines += [others] if self._others else []
        is_said = self._rank == 0 or f"rank {self._rank} " in lines[0]
        for line in lines if is_said and not (run is None and (error or self._processes)) else ():
            print(printable(redact(f"dpexp.watch: {line}")), file=sys.stderr)
        is_wrong = self._processes is not None and any(Path(self._processes.name).iterdir())
        return is_wrong or (is_said and run is not None and bool(run.findings))

    def observed(self, function: Function, is_whole: bool = True) -> Function:
        """A loss function, which the run observes, unless there are other models: it may be theirs."""

        def observe(*args: Any, **kwargs: Any) -> Any:
            if self._run is None or self._run.done or self._others:
                return function(*args, **kwargs)
            if function not in self._losses:
                self._losses[function] = self._run.observed(function, is_whole)
            return self._losses[function](*args, **kwargs)

        return observe

    # --- what is found ---

    def _given(self, layout: str, is_part: bool, models: list[nn.Module]) -> None:
        """Watch a model that is laid out, or the one whose part is."""
        from dpexp.watch.holders import outermost, uncompiled

        for each in models:
            model = uncompiled(outermost(each) if is_part and not self._is_over else each)
            self._watch(model, f"{type(model).__name__}, given to {layout}")

    def _made(self, optimizer: Any) -> None:
        """Watch the module that holds the optimizer's parameters when it is called in training."""
        from dpexp.watch.holders import holder_of

        name = type(optimizer).__name__
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        holder = holder_of(held)
        if holder is None:
            self._note = f"no module holds what {name} optimizes" if self._model is None else self._note
            return
        part = "" if held <= {*map(id, holder.parameters())} else "partly "
        how = f"{type(holder).__name__}, {part}optimized by {name}"
        if self._is_over or self._model is not None:
            self._add_other(holder, how)
            return
        self._model, self._how, self._note = holder, how, f"{how}: it was not called in training"
        kind: Any = sys.modules["torch"].nn.Module
        call, parts = kind.__call__, {*holder.modules()}

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._is_over or (module.training and parts & {*module.modules()}):
                kind.__call__ = call
                if not self._is_over:
                    self._watch(holder, how)
            return call(module, *args, **kwargs)

        kind.__call__ = called

    def _watch(self, model: nn.Module, how: str) -> None:
        """Begin to watch, if nothing is watched, and not in a process that the program forks."""
        if self._is_over or os.getpid() != self._pid:
            self._add_other(model, how)
            return
        before, how_before, self._model, self._how, self._is_over = self._model, self._how, model, how, True
        if before is not None:
            self._add_other(before, how_before)
        from dpexp.watch.program import rank

        self._rank = rank()
        try:
            self._run = watch(model, **self._wanted)
        except Exception as error:  # the program goes on
            self._note = f"{how}: {describe(error)}"

    def _add_other(self, model: nn.Module, how: str) -> None:
        """Keep what to say of a model that has no part in common with the one that is watched."""
        if self._model is not None and not {*model.modules()} & {*self._model.modules()}:
            self._others[how] = None

    def _watch_of_program(self, *args: Any, **kwargs: Any) -> WatchedLoop:
        """``dpexp.watch``: the program is left alone."""
        self._is_over, self._note = True, "the program calls dpexp.watch itself"
        return watch(*args, **kwargs)

    # --- what is replaced ---

    def _replace_layouts(self, package: str) -> None:
        from dpexp.watch.hooks import Replaced

        if package == "torch":
            self._replace_in_torch()
        for path in LAYOUTS[package]:
            *owners, name = path.split(".")
            owner: Any = reduce(getattr, owners, sys.modules[package])
            layout, attribute = getattr(owner, name), name
            if inspect.isclass(layout):
                owner, attribute = layout, "__init__"
            if inspect.isclass(owner):
                act = partial(self._given, name, False)
                setattr(owner, attribute, _before(getattr(owner, attribute), 1, act))
            else:
                Replaced({layout: _before(layout, 0, partial(self._given, name, True))})

    def _replace_in_torch(self) -> None:
        """Losses, optimizers, and the start of processes."""
        import torch

        from dpexp.watch.hooks import Replaced
        from dpexp.watch.losses import observe_torch_losses

        observe_torch_losses(self)
        kind: Any = torch.optim.Optimizer
        make = kind.__init__
        start: Function = sys.modules["torch.multiprocessing.spawn"].start_processes

        @wraps(make)
        def make_and_look(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._made(optimizer)

        @wraps(start)
        def start_watched(fn: Function, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("start_method", "spawn") == "spawn":
                self._processes = self._processes or TemporaryDirectory(prefix="dpexp-watch-")
                fn = InProcess(fn, self._wanted, self._processes.name)
            return start(fn, *args, **kwargs)

        kind.__init__ = make_and_look
        Replaced({start: start_watched})

    def _replace_trainer(self, name: str) -> None:
        """A Trainer that is given no WatchCallback gets one."""
        trainer: Any = sys.modules[name].Trainer
        make, signature = trainer.__init__, inspect.signature(trainer.__init__)

        @wraps(make)
        def make_watched(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs)
            callbacks = given.arguments.get("callbacks") or []
            callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
            kind = import_module(f"dpexp.integrations.{TRAINERS[name]}").WatchCallback
            self._is_over, self._note = True, "the Trainer did not train"
            if not any(isinstance(each, kind) for each in callbacks):
                self._callbacks.append(kind(**self._wanted))
                given.arguments["callbacks"] = [*callbacks, self._callbacks[-1]]
            make(*given.args, **given.kwargs)

        trainer.__init__ = make_watched


class InProcess:
    """A function that another process calls, which makes a file in the folder if its loop is wrong."""

    def __init__(self, function: Function, wanted: Mapping[str, Any], folder: str) -> None:
        self._function, self._wanted, self._folder = function, wanted, folder

    def __call__(self, *args: Any) -> None:
        if ScriptWatch(**self._wanted).run(partial(self._function, *args)):
            Path(self._folder, str(os.getpid())).touch()


def _replace_popen(wanted: Mapping[str, Any]) -> None:
    """A program that starts itself again, as Lightning does for its ranks, is watched there, too."""
    kind: Any = subprocess.Popen
    make = kind.__init__
    options = ["--steps", str(wanted["steps"]), *(["--name", wanted["name"]] if wanted["name"] else [])]
    options += [] if wanted["track"] else ["--no-track"]

    @wraps(make)
    def make_watched(process: Any, args: Any, *rest: Any, **given: Any) -> None:
        path = getattr(sys.modules["__main__"], "__file__", None)
        if isinstance(args, list) and args[:2] == [sys.executable, path]:
            args = [sys.executable, "-m", "dpexp.watch", *options, *args[1:]]
        make(process, args, *rest, **given)

    kind.__init__ = make_watched


class _Imports(MetaPathFinder):
    """Calls what there is to do once a module was imported."""

    def __init__(self, then: dict[str, Callable[[], None]]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The spec that the other finders have, with a loader that does it."""
        act = self._then.pop(name, None)
        spec = find_spec(name) if act is not None else None
        if act is None or spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_act(module: Any) -> None:
            load(module)
            act()

        vars(spec.loader)["exec_module"] = load_and_act
        return spec


def _before(function: Function, skipped: int, act: Callable[[list[Any]], None]) -> Function:
    """The function, which acts first, on the modules among its arguments after so many."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        from torch import nn

        given = [*args[skipped:], *kwargs.values()]
        flat = [each for some in given for each in (some if isinstance(some, list) else (some,))]
        act([each for each in flat if isinstance(each, nn.Module)])
        return function(*args, **kwargs)

    return called
