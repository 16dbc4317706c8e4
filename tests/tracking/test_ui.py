"""``scripts/ui.py`` where it cannot serve; ``test_browser.py`` shows where it does."""

import os
from pathlib import Path

from helpers.command_lines import script
from helpers.servers import free_port


def test_a_store_or_server_that_cannot_be_used_is_reported_in_one_line(dpexp_home: Path) -> None:
    (dpexp_home / "mlflow.db").write_bytes(os.urandom(4096))
    port = free_port()
    refused = script("ui.py", "--port", port)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "it is not an SQLite file" in refused.stderr
    away = script("ui.py", MLFLOW_TRACKING_URI=f"http://me:hunter22@127.0.0.1:{port}")
    assert away.returncode == 1
    message = f"error: the server http://***@127.0.0.1:{port} cannot be used: connection refused\n"
    assert away.stderr == message
