"""Redaction: no credential is in a text, and numbers, keys and other texts stay as they are."""

import json
import os
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import pytest
from helpers import journals
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dpexp.distributed.faults import MAX_TEXT, error_row
from dpexp.record.fold import finish, load_record
from dpexp.record.redact import SHORTEST, redact, redact_values
from dpexp.tracking.store import short_message

SECRET = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=SHORTEST)
NAMES = st.sampled_from(["MY_KEY", "DB_PWD", "DB_PASSWORD", "A_SECRET", "HF_TOKEN", "PGPASSWORD", "api_key"])


def variables(**values: str) -> mock._patch_dict:
    return mock.patch.dict(os.environ, values, clear=True)


@given(SECRET, NAMES)
@example('quite "secret"', "DB_PWD")
@example("pa/ss w@rd:x", "DB_PASSWORD")
def test_the_value_of_a_secret_variable_is_hidden_however_it_is_written(secret: str, name: str) -> None:
    assume(len(secret.strip()) >= SHORTEST and secret not in "go  there")
    with variables(**{name: secret}):
        facts = redact_values({"environment": {"argv": [3, f"go {secret} there"]}, "name": secret})
        message = redact(f"JSON {json.dumps([secret])}, Python {[secret]}, URL {quote(secret, safe='')}")
    assert facts == {"environment": {"argv": [3, "go *** there"]}, "name": "***"}
    if secret not in "JSON Python URL":
        assert message == "JSON [\"***\"], Python ['***'], URL ***".replace("'", repr(secret)[0])


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("http://user:pass@host:1/p", "http://***@host:1/p"),
        ("https://token@host and ftp://h", "https://***@host and ftp://h"),
        ("postgresql://me:p@ss/w@rd@host/db: refused", "postgresql://***@host/db: refused"),
        ("https://h/x?api_key=abc&y=1", "https://h/x?api_key=***&y=1"),
        ("s3://b?X-Amz-Signature=abc", "s3://b?X-Amz-Signature=***"),
        ("train.py --api-key=abc --steps=3", "train.py --api-key=*** --steps=3"),
        ("HF_TOKEN=abc python train.py", "HF_TOKEN=*** python train.py"),
        ("mine.py:make:rows=3,api_key=abc", "mine.py:make:rows=3,api_key=***"),
        ("mail me@example.org", "mail me@example.org"),
        ("see http://localhost:5000/#/x; mail joe@example.com",) * 2,
        ("https://mlflow.example.com:8443/api?x=1#y and https://example.com/a@b",) * 2,
        ("model gpt:max_token=512,pad_token=0",) * 2,
    ],
)
def test_a_login_and_what_is_called_a_secret_are_hidden_and_nothing_else(text: str, clean: str) -> None:
    with variables():
        assert redact(text) == clean


def test_what_follows_an_option_for_a_secret_is_hidden() -> None:
    argv = ["train.py", "--hub-token", "abc", "--steps", "3", "-token"]
    with variables():
        assert redact_values({"argv": argv})["argv"] == ["train.py", "--hub-token", "***", *argv[3:]]


def test_the_password_of_a_uri_of_the_environment_is_hidden_alone() -> None:
    with variables(
        MLFLOW_TRACKING_URI="postgresql://me:p%40ssword@host/db", REPOSITORY="ssh://deploy@host/x"
    ):
        assert redact("login failed with p@ssword, p%40ssword") == "login failed with ***, ***"
        assert redact("git clone deploy") == "git clone deploy"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "/home/me") for name in ("PWD", "OLDPWD", "KEYBOARD", "PGPASSFILE", "SSH_AUTH_SOCK")),
        ("TOKENIZERS_PARALLELISM", "workers"),
        ("NO_TOKEN", "1"),
        ("USE_AUTH", "true"),
    ],
)
def test_other_variables_are_no_secrets(name: str, value: str) -> None:
    with variables(**{name: value}):
        assert redact("1 of true workers in /home/me") == "1 of true workers in /home/me"


@pytest.mark.parametrize("secret", ["835788", "loss_of", "status", "finished"])
def test_no_secret_changes_a_number_a_key_or_a_status(secret: str) -> None:
    facts = {"status": "finished", "loss_of": {"loss_of": 0.5}, "data": {"samples": 835788, "835788": None}}
    with variables(DB_PASSWORD=secret):
        assert redact_values(facts) == facts


def test_a_secret_is_hidden_before_a_long_text_is_cut() -> None:
    with variables(A_TOKEN="correct-horse"):
        for cut in range(290, 301):
            assert "correct" not in short_message(RuntimeError("x" * (cut - 7) + "correct-horse" + "y" * 100))
        row = error_row(RuntimeError("x" * (MAX_TEXT - 8) + "correct-horse"))
        assert "correct" not in row["message"] + row["traceback"]


def test_credentials_are_in_no_file_of_a_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", 'quite "secret"')
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter22")
    argv = ["run.py", "--data", "postgresql://me:p@ss@db/x?password=abcdef", 'quite "secret"', "hunter22"]
    record = finish(
        journals.complete(runs, environment={"argv": argv}, error={"message": "at https://u:hunter22@h"})
    )
    for path in runs.rglob("*"):
        if path.is_file():
            assert not [each for each in ("hunter22", "p@ss", "abcdef", "secret") if each in path.read_text()]
    assert record.damage == []
    assert record.environment["argv"][2] == "postgresql://***@db/x?password=***"
    assert load_record(runs / record.run_id) == record
