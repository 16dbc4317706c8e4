"""Files of snapshots: what was written can be read, and whatever else is there, an older one is taken."""

import copy
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launching import run, words
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.distributed.process_group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.timing import Timer
from dpexp.training.optimizer_names import OPTIMIZERS
from dpexp.training.snapshot_file import DamagedError, State, UnreadableStateError, read_snapshot
from dpexp.training.snapshots import Snapshots, add_snapshot
from dpexp.training.trainer import Trainer

# --- optimizers of the user -------------------------------------------------------------------------


class Keeping(torch.optim.Optimizer):
    """SGD whose steps depend on what it keeps: of each parameter ``first``, in numbers of many kinds."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, first: Any) -> None:
        super().__init__(parameters, {"lr": lr, "scale": np.float32(1), "rate": torch.tensor(lr)})
        self.first = [first]
        self.taken, self.sum, self.seen = np.int64(0), torch.zeros(2), np.zeros(3)
        self.past: list[float] = []
        self.best = {"steps": (0, "none")}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.taken += 1
        self.sum += 0.5
        self.past.append(float(self.taken))
        self.best["steps"] = (len(self.past), "some")
        self.seen *= 0.5
        self.seen += float(self.sum[0])
        shared: Any = self.state.setdefault("shared", {"steps": 0})  # type: ignore[call-overload]
        shared["steps"] += 1
        factor = 1 / float(self.taken + self.seen.sum() + shared["steps"] + sum(self.past))
        for group in self.param_groups:
            group["scale"] = np.float32(group["scale"] * 0.9)
            group["rate"] *= 0.95
            for parameter in group["params"]:
                kept = self.state[parameter]
                kept["value"] = kept["value"] * 2 if "value" in kept else copy.copy(self.first[0])
                size = float(np.asarray(kept["value"], dtype=float).sum())
                if self.taken > 3:  # later than a resumed run has stepped before it loads a snapshot
                    kept.setdefault("late", torch.zeros_like(parameter)).add_(parameter.grad)
                    parameter.sub_(kept["late"] * 0.01)
                parameter.sub_(parameter.grad * group["rate"] * float(group["scale"]) * factor / (1 + size))


KINDS: dict[str, Any] = {
    "float64": np.float64(0.5),
    "float16": np.float16(0.5),
    "array": np.linspace(0.0, 1.0, 5),
    "tensor": torch.tensor([0.25]),
    "number": 0.75,
    "complex": np.complex128(0.5),
    "fraction": Fraction(1, 3),
    "object_array": np.array([Fraction(1, 3)], dtype=object),
}
NOT_HELD = ("fraction", "object_array")


def keeping(parameters: list[nn.Parameter], lr: float, kind: str = "fraction") -> torch.optim.Optimizer:
    first = KINDS[kind]
    return Keeping(parameters, lr, first.real if kind == "complex" else first)


def trainer(kind: str = "float64", steps: int = 0, *, wide: int = 5) -> Trainer:
    values = {"strategy": "single", "devices": "cpu", "optimizer": f"{__file__}:keeping:kind={kind}"}
    prepared = prepare(RunConfig.from_dict(values | {"model": f"linear:in={wide}"}), one_batch=False)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    found = prepared.trainer(placed)
    for _, batch in zip(range(steps), prepared.endless_batches(), strict=False):
        found.step(batch)
    return found


def state_of(trained: Trainer, step: int) -> State:
    return {"step": step, "config": {}} | trained.state_dict()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - set(NOT_HELD)))
def test_what_a_users_optimizer_keeps_is_restored_to_the_bit(tmp_path: Path, kind: str) -> None:
    undisturbed = trainer(kind, 6)
    add_snapshot(tmp_path, 6, state_of(undisturbed, 6))
    resumed = trainer(kind, 2)
    state = Snapshots(tmp_path, ProcessGroup()).newest(resumed.misfit)
    assert state is not None
    resumed.load_state_dict(state)
    expected = undisturbed.state_dict()
    assert str(resumed.state_dict()) == str(expected)
    for each in (undisturbed, resumed):
        each.take_steps(prepare(RunConfig("single"), one_batch=False).batches(0))
    for name, tensor in undisturbed.parameters().items():
        assert torch.equal(tensor, resumed.parameters()[name]), name


@pytest.mark.parametrize("kind", NOT_HELD)
def test_a_state_that_could_not_be_read_is_refused_and_the_older_snapshot_stays(
    tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "snapshots"
    add_snapshot(folder, 1, state_of(trainer(steps=1), 1))
    with pytest.raises(UnreadableStateError, match=r"cannot hold optimizer/fc.weight/value, a "):
        add_snapshot(folder, 2, state_of(trainer(kind, 2), 2))
    assert [path.name for path in folder.iterdir()] == ["step-0000000001.pt"]


def test_a_run_that_a_signal_ends_is_only_warned_of_a_snapshot_that_nobody_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = state_of(trainer("fraction", 2), 2)
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "snapshots", tmp_path / "file"):
        Snapshots(folder, ProcessGroup()).save(2, state, must=False)
        assert capsys.readouterr().err.startswith("warning: no snapshot to resume from: ")
    with pytest.raises(FileExistsError):
        Snapshots(tmp_path / "file", ProcessGroup()).save(2, state)


def test_a_run_says_at_its_first_snapshot_what_could_not_be_read(dpexp_home: Path, tmp_path: Path) -> None:
    arguments = [*words(tmp_path), "--devices", "1", "--optimizer", f"{__file__}:keeping", "--steps", "5"]
    done = run(*arguments)
    assert done.returncode == 1
    assert "a snapshot cannot hold optimizer/0.weight/value, a fractions.Fraction" in done.stderr
    assert done.stderr.count("warning: snapshots do not keep the optimizer's first: ") == 1
    (folder,) = (dpexp_home / "runs").iterdir()
    assert json.loads((folder / "record.json").read_bytes())["error"]["type"] == "UnreadableStateError"


def test_what_snapshots_leave_out_of_an_optimizer_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = trainer(steps=1)
    assert trained.not_kept() == []
    assert trained.optimizers is not None
    (optimizer,) = trained.optimizers.members
    endless: list[Any] = [1]
    endless.append(endless)
    left_out = {
        "endless": endless,
        "objects": KINDS["object_array"],
        "listed": [KINDS["object_array"]],
        "tensors": [torch.zeros(2)],
        "average": nn.Linear(1, 1),
    }
    vars(optimizer).update(left_out, shared=[[1]] * 2, code=len, all=list(trained.parameters().values()))
    optimizer.param_groups[0]["fractions"] = {"of": Fraction(1, 3)}
    assert trained.not_kept() == [*left_out, "fractions"]
    kept = trained.state_dict()["attributes"][0]["attributes"]
    assert kept.keys() & vars(optimizer).keys() >= {"shared", "past"}
    assert not kept.keys() & left_out.keys()
    snapshots = Snapshots(tmp_path, ProcessGroup())
    for _ in range(2):
        snapshots.leave_out(trained.not_kept())
    message = capsys.readouterr().err
    assert message.startswith(
        f"warning: snapshots do not keep the optimizer's {', '.join(left_out)}, fractions: "
    )
    assert message.count("\n") == 1
    snapshots.save(1, state_of(trained, 1))
    assert snapshots.newest() is not None


@pytest.mark.parametrize("name", [*OPTIMIZERS])
def test_of_the_optimizers_with_a_name_snapshots_leave_nothing_out(name: str) -> None:
    values = {"strategy": "single", "devices": "cpu", "optimizer": name}
    prepared = prepare(RunConfig.from_dict(values), one_batch=False)
    trained = prepared.trainer(prepared.strategy.place(prepared.model, prepared.selection.used, Timer()))
    for _, batch in zip(range(2), prepared.endless_batches(), strict=False):
        trained.step(batch)
    assert trained.not_kept() == []


# --- files that are no snapshots ----------------------------------------------------------------------


def seal(content: bytes) -> bytes:
    """A file with this content and its right hash."""
    header = {"step": 20, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return json.dumps(header).encode() + b"\n" + content


def encoded(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def damaged(content: bytes) -> Callable[[Path, State], object]:
    return lambda path, state: path.write_bytes(content)


def changed(**values: Any) -> Callable[[Path, State], object]:
    """The right hash, and other values in the state; None for none."""
    return lambda path, state: path.write_bytes(
        seal(encoded({key: value for key, value in (state | values).items() if value is not None}))
    )


def flipped(path: Path, state: State) -> None:
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)


def zeroed(path: Path, state: State) -> None:
    """The numbers of a tensor are zeros, as after a write that the disk lost."""
    content = path.read_bytes()
    numbers = state["parameters"]["fc.weight"].numpy().tobytes()
    assert numbers in content
    path.write_bytes(content.replace(numbers, bytes(len(numbers))))


def huge(path: Path, state: State) -> None:
    """A tensor of 2^50 numbers, of which the archive has few."""
    content = io.BytesIO(encoded(state))
    other = io.BytesIO()
    with zipfile.ZipFile(content) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, data.replace(b"K\x0a", b"\x8a\x07" + bytes(6) + b"\x04"))
    path.write_bytes(seal(other.getvalue()))


def instead(make: Callable[[Path], object]) -> Callable[[Path, State], None]:
    def replace(path: Path, state: State) -> None:
        path.unlink()
        make(path)

    return replace


def linked(path: Path) -> None:
    path.symlink_to(path.with_name("step-0000000010.pt"))


def nested(depth: int) -> bytes:
    """A pickle of lists in lists, deeper than Python's stack."""
    buffer = io.BytesIO(encoded([]))
    other = io.BytesIO()
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            is_pickle = name.endswith("data.pkl")
            data = b"\x80\x02" + b"(" * depth + b"l" * depth + b"." if is_pickle else source.read(name)
            target.writestr(name, data)
    return other.getvalue()


DAMAGE: dict[str, Callable[[Path, State], object]] = {
    "empty": damaged(b""),
    "no header": damaged(b"\n"),
    "deep header": damaged(b"[" * 100_000 + b"\n"),
    "header of another kind": damaged(b"[1]\ncontent"),
    "flipped bit": flipped,
    **{
        f"cut at {cut}": lambda path, state, cut=cut: path.write_bytes(path.read_bytes()[:cut])
        for cut in (1, 50, 500, -1)
    },
    "zeroed": zeroed,
    "huge": huge,
    "no archive": damaged(seal(b"text")),
    "cut archive": lambda path, state: path.write_bytes(seal(encoded(state)[:-30])),
    "foreign class": changed(optimizer={"fc.weight": {"value": Fraction(1, 3)}}),
    "code": damaged(seal(encoded(os.system))),
    "deep": damaged(seal(nested(1_000_000))),
    "list": damaged(seal(encoded([1, 2]))),
    "tensor": damaged(seal(encoded(torch.ones(2)))),
    **{f"no {key}": changed(**{key: None}) for key in ("step", "config", "parameters", "buffers", "random")},
    "no groups": changed(groups=None),
    "other step": changed(step=10),
    "step of another kind": changed(step="20"),
    "no parameter": changed(parameters={}),
    "other parameters": changed(parameters={"fc.weight": torch.ones(2, 5), "other": torch.ones(2)}),
    "other shape": changed(parameters={"fc.weight": torch.ones(2, 6), "fc.bias": torch.ones(2)}),
    "parameter of another kind": changed(parameters={"fc.weight": 1, "fc.bias": torch.ones(2)}),
    "no random states": changed(random=[]),
    "other random states": changed(random=[[torch.ones(2)]]),
    "other optimizer": changed(optimizer={"fc.weight": {"value": torch.ones(2, 7)}}),
    "optimizer of another kind": changed(optimizer=[1]),
    "groups of another kind": changed(groups=[[], []]),
    "directory": instead(Path.mkdir),
    "pipe": instead(os.mkfifo),
    "link": instead(linked),
    "device": instead(lambda path: path.symlink_to("/dev/zero")),
    "dangling link": instead(lambda path: path.symlink_to("nowhere")),
    "not allowed": lambda path, state: path.write_bytes(b"") if os.getuid() == 0 else path.chmod(0),
}


@pytest.mark.usefixtures("one_thread")
def test_whatever_is_in_the_place_of_a_snapshot_the_older_one_is_taken_and_the_user_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = trainer("tensor", 1)
    for number, (kind, damage) in enumerate(DAMAGE.items()):
        folder = tmp_path / str(number)
        for step in (10, 20):
            add_snapshot(folder, step, state_of(trained, step))
        damage(folder / "step-0000000020.pt", state_of(trained, 20))
        snapshots = Snapshots(folder, ProcessGroup())
        for _ in range(2):  # a run looks before it begins, and again when its model is placed
            found = snapshots.newest(trained.misfit)
            assert found is not None, kind
            assert found["step"] == 10, kind
        (message,) = capsys.readouterr().err.splitlines()
        assert message.startswith(f"warning: snapshot {folder}/step-0000000020.pt "), kind
        assert message.endswith("; an older one is tried"), kind
        trained.load_state_dict(found)
        add_snapshot(folder, 15, state_of(trained, 15))  # what the run resumed before, is removed
        left = {path.name for path in folder.glob("step-*") if not path.is_dir()}
        assert left == {"step-0000000010.pt", "step-0000000015.pt"}, kind


def test_foreign_files_are_neither_read_nor_removed(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    foreign = [folder / name for name in ("step-1.pt", "step-abc.pt", "notes.txt", "step-0000000099.pt.old")]
    trained = trainer()
    for path in foreign:
        path.write_bytes(b"")
    for step in (1, 2, 3):
        add_snapshot(folder, step, state_of(trained, step))
    snapshots = Snapshots(folder, ProcessGroup())
    assert snapshots.newest() is not None
    assert snapshots.refused == {}
    names = {*foreign, folder / "step-0000000002.pt", folder / "step-0000000003.pt"}
    assert set(folder.iterdir()) == names


def test_a_damaged_snapshot_is_named(tmp_path: Path) -> None:
    add_snapshot(tmp_path / "snapshots", 5, state_of(trainer(), 5))
    (path,) = (tmp_path / "snapshots").iterdir()
    flipped(path, {})
    with pytest.raises(DamagedError, match="is damaged: its hash"):
        read_snapshot(path)


def test_a_file_that_a_killed_writer_left_is_removed_with_the_snapshots(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    add_snapshot(folder, 5, state_of(trainer(), 5))
    (folder / ".step-0000000010.pt.4711").write_bytes(b"half")
    Snapshots(folder, ProcessGroup()).remove()
    assert not folder.exists()


def test_a_run_without_snapshots_has_no_state(tmp_path: Path) -> None:
    assert Snapshots(tmp_path / "none", ProcessGroup()).newest() is None
