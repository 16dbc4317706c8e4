"""``runs.py`` on a full disk: one message, the journals stay, and with room again everything is delivered."""

import json
import subprocess
import sys
from pathlib import Path

import journals
import needs
import pytest
from command_lines import PATIENCE_S, ROOT
from mlflow_reader import only_run

from dpexp.record.record import Record

pytestmark = pytest.mark.filterwarnings("default")  # MLflow and SQLAlchemy warn of each other

COMMANDS = """
import contextlib, importlib.util, io, json, os, pathlib, sys
home, foreign = map(pathlib.Path, sys.argv[1:])
import journals
spec = importlib.util.spec_from_file_location("runs", "scripts/runs.py")
runs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runs)

def call(*words):
    out, sys.argv = io.StringIO(), ["runs.py", *map(str, words)]
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            runs.run_app(runs.app)
        except SystemExit as end:
            code = end.code
    return [words[0], code, out.getvalue().splitlines()]

journals.begin(home / "runs", "dead")._file.close()
filler = open(home / "filler", "wb", buffering=0)
for size in (1 << 16, 1):
    with contextlib.suppress(OSError):
        while True:
            filler.write(bytes(size))
full = [call("sync"), call("sync", foreign)]
filler.close()
os.remove(home / "filler")
print(json.dumps([full, [call("sync"), call("sync", foreign)]]))
"""


def test_on_a_full_disk_sync_says_so_and_loses_nothing(tmp_path: Path) -> None:
    home = tmp_path / "small"
    foreign = journals.complete(tmp_path / "foreign", "abroad")
    store = f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}"
    (tmp_path / "store").mkdir()
    environment = {
        "PATH": "/usr/bin:/bin",
        "DPEXP_HOME": str(home),
        "MLFLOW_TRACKING_URI": store,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'helpers'}",
    }
    done = subprocess.run(
        [*needs.disk(home, "size=3m"), sys.executable, "-c", COMMANDS, str(home), str(foreign)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    full, roomy = json.loads(done.stdout.splitlines()[-1])
    (_, code, (line,)), (_, refused, (message,)) = full
    assert (code, refused) == (3, 1), full
    assert line.startswith("dead  not delivered: ")
    assert "No space left on device" in line
    assert message.startswith("error: OSError: [Errno 28] No space left on device")
    assert [code for _, code, _ in roomy] == [0, 0], roomy
    assert only_run(store, "abroad").info.status == "FINISHED"
    assert only_run(store, "dead").info.status == "KILLED"
    assert Record.load(foreign.parent).status == "finished"
