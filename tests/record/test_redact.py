"""Redaction: no secret in a text, and nothing else changed, whatever the secret is equal to."""

import importlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import journals
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dpexp.distributed.faults import MAX_TEXT, error_row
from dpexp.record.record import Record, fold
from dpexp.record.redact import Verbatim, redact, redact_entry
from dpexp.tracking.errors import short_message

redact_module = importlib.import_module("dpexp.record.redact")  # the package has a function of this name
IN_ENVIRONMENT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
ANY_SECRET = IN_ENVIRONMENT | st.integers(0, 10**9).map(str) | st.text('/ @:"\\{}#%', min_size=1)
OF_OURS = [
    "finished",
    "whole",
    "linear",
    "cpu:0",
    "true",
    "0",
    "30",
    "835788",
    "3.11.2",
    "set",
    "status",
    "a",
]
AROUND = st.lists(st.sampled_from([*"xyz :/@?=&#%", "http://x:", "@y", "?key=", "http://x:80/ "])).map(
    "".join
)
"""What may stand around a secret, without its letters."""
NAMES = st.sampled_from(["MY_KEY", "DB_PWD", "DB_PASSWORD", "A_SECRET", "HF_TOKEN", "PGPASSWORD", "api_key"])


def variables(**values: str) -> mock._patch_dict:
    return mock.patch.dict(os.environ, values, clear=True)


@given(ANY_SECRET, NAMES)
@example("7", "MY_KEY")
@example('quite "secret"', "DB_PWD")
def test_a_secret_of_any_length_and_characters_is_hidden_in_every_text(secret: str, name: str) -> None:
    assume(secret.strip() and secret.strip() not in "go  there")
    text = f"go {secret} there"
    entry = {"set": {"environment": {"argv": ["run.py", text]}, "error": {"message": text}, "name": text}}
    with variables(**{name: secret}):
        clean = redact_entry(entry)["set"]
        message = redact(
            f"in JSON {json.dumps([secret])}, in Python {[secret]}, in a URL {quote(secret, safe='')}"
        )
    assert clean["environment"]["argv"][1] == clean["error"]["message"] == clean["name"] == "go *** there"
    if len(secret) > 8:
        assert secret not in message
        assert json.dumps(secret)[1:-1] not in message
        assert quote(secret, safe="") not in message


@given(st.sampled_from(OF_OURS) | ANY_SECRET)
def test_no_secret_changes_a_number_a_key_or_a_value_of_ours(secret: str) -> None:
    facts = {
        "status": "finished",
        "strategy": "whole",
        "run_id": secret,
        "devices": {"used": ["cpu:0", secret]},
        "environment": {"python": "3.11.2", "host": secret, "packages": {secret: secret}},
        "error": {"type": secret},
        "config": {"steps": 30, "check": True, "epochs": None, "dtype": Verbatim(secret), secret: 0.5},
        "data": {"samples": 835788, "sha256": secret},
        "verification": {
            "dtype": secret,
            "worst": {"kind": secret, "step": 1, "error": 0.5},
            "rounding": {"dtype": secret, "autocast": secret, "passed": True},
        },
    }
    lists = {
        "steps.time_ms": [835788, 0.7, float("inf")],
        "timeline": [{"phase": "forward", "device": secret}],
    }
    entry = {"seq": 7, "at": 835788, "set": facts, "extend": lists, "from": {"steps.time_ms": 30}}
    with variables(DB_PASSWORD=secret):
        assert redact_entry(entry) == entry


@given(st.text("/ @:abc1?#%&=", min_size=1).filter(str.strip), st.booleans())
@example("pa/ss w@rd:x", False)
@example("1://1@", True)
def test_a_password_with_any_character_is_hidden_in_a_uri(password: str, is_known: bool) -> None:
    uri = f"postgresql://me:{password}@host/db"
    with variables(MLFLOW_TRACKING_URI=uri if is_known else ""):
        assert redact(f"cannot open {uri}: refused") == "cannot open postgresql://***@host/db: refused"
        assert redact_entry({"set": {"config": {"data": uri}}})["set"]["config"]["data"] == uri.replace(
            f"me:{password}", "***"
        )
        if is_known and len(password) > 5:
            assert redact(f"login failed with {password}") == "login failed with ***"


@given(
    AROUND,
    st.text("ABC :/@?=&#%", min_size=8).filter(lambda text: text[2:].strip() and text[:-2].strip()),
    AROUND,
    st.text("ABC :/@?=&#%", min_size=6).filter(str.strip),
    AROUND,
)
@example("", "1://1@CC", "", "AAAAAA", "")
@example("http://x:", "AB/@?A#%", "@y ", "#%%://", "")
def test_secrets_are_hidden_beside_and_across_each_other_and_urls(
    before: str, two: str, between: str, one: str, after: str
) -> None:
    with variables(A_TOKEN=two[2:], B_TOKEN=two[:-2], C_TOKEN=one):
        assert not set("ABC") & set(redact(f"{before}{two}{between}{one}{after}"))


@pytest.mark.parametrize(
    "text",
    [
        "see http://localhost:5000/#/x; mail joe@example.com",
        "http://127.0.0.1:5000 is down, ask joe@example.com",
        "(http://[::1]:5000), joe@example.com",
        "https://mlflow.example.com:8443/api?x=1#y and https://example.com/a@b",
    ],
)
def test_a_host_with_a_port_is_no_login(text: str) -> None:
    with variables():
        assert redact(text) == text


def test_a_login_after_a_host_with_a_port_is_hidden() -> None:
    login = "postgresql://me:pa ss/w@rd@host/db"
    with variables():
        for before in ("http://localhost:5000/#/x and ", "http://localhost:5000/?db="):
            assert "pa ss" not in redact(before + login)
        assert (
            redact(f"http://localhost:5000/x {login}") == "http://localhost:5000/x postgresql://***@host/db"
        )
        assert redact("http://localhost:5000/p@ss@host/db") == "http://***@host/db"
        assert redact("http://first.last:2024secret x@host") == "http://***@host"


def test_each_url_of_a_long_text_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a text without a later @ nothing is searched: from each URL to the end would be quadratic."""
    searched: list[str] = []

    class Pattern:
        def finditer(self, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
            searched.append(text[start:end])
            return in_url.finditer(text, start, end)

    in_url = redact_module._IN_URL
    monkeypatch.setattr(redact_module, "_IN_URL", Pattern())
    urls = "http://h:80/a " * 1000
    with variables():
        assert (
            redact(f"{urls}\nhttps://token@host {urls}\n{urls}") == f"{urls}\nhttps://***@host {urls}\n{urls}"
        )
    assert searched == ["", "https://token@", ""]


@pytest.mark.parametrize("secret", OF_OURS)
def test_a_journal_folds_to_the_same_record_whatever_the_secrets_are(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    before = fold(journals.complete(dpexp_home / "before", "one")).to_dict()
    monkeypatch.setenv("DB_TOKEN", secret)
    journal = journals.complete(dpexp_home / "after", "one")
    after = fold(journal).to_dict()
    changed = {key for key in before if before[key] != after[key]} - {"started", "ended"}
    assert changed <= {"name", "config", "environment"}  # which hold the texts of this Record
    assert after["environment"] | {"argv": []} == before["environment"] | {"argv": []}
    assert fold(journal).damage == []


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "KEYBOARD", "PGPASSFILE", "SSH_AUTH_SOCK"]
)
def test_other_variables_are_no_secrets(name: str) -> None:
    with variables(**{name: "/home/me/work"}):
        assert redact("in /home/me/work") == "in /home/me/work"


def test_a_secret_is_hidden_before_a_long_text_is_cut() -> None:
    for cut in range(290, 301):
        with variables(A_TOKEN="correct-horse"):
            assert "correct" not in short_message(RuntimeError("x" * (cut - 7) + "correct-horse" + "y" * 100))
    with variables(A_TOKEN="correct-horse"):
        row = error_row(RuntimeError("x" * (MAX_TEXT - 8) + "correct-horse"))
        assert "correct" not in row["message"] + row["traceback"]


def test_a_user_name_alone_is_no_secret() -> None:
    with variables(REPOSITORY="ssh://git@host/x", PACKAGE="git+https://host/a/b@main"):
        assert redact("git clone host/a/b") == "git clone host/a/b"


def test_every_text_of_a_record_is_redacted_unless_it_is_ours() -> None:
    """A new field of a Record is one or the other: decide, in ``_TEXTS``."""
    with variables(A_TOKEN="secretly"):
        texts = {
            key for key in Record().to_dict() if redact_entry({"set": {key: "secretly"}})["set"][key] == "***"
        }
    of_this_run = {"name", "experiment", "error", "config", "environment", "data", "verification", "files"}
    assert texts == of_this_run | {"damage", "work"}
