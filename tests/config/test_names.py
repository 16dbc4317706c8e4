"""Names of experiments and runs: the good ones stay, every other name is refused or fitted."""

import pytest

from dpexp.config import names
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig

GOOD = ("dpexp", "a/b", "/Users/me@example.com/experiment", "5", "naïve 実験 💥", "x" * 250, "..a", "a b")
BAD = (
    *(" ", "   ", ".", "..", "...", ". .", "x" * 251, "x" * 300, "x" * 5000, "a\nb", "\r", "\0", "a\x00b"),
    *("\x1b[31m", "\x7f", "\x85", "a\u2028b", "\ud800", "a\udfff", "\n" * 300),
)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_stays(name: str) -> None:
    config = RunConfig("single", experiment=name, run_name=name)
    assert (config.experiment, config.run_name) == (name, name)
    assert names.fitted(name, "default") == name


@pytest.mark.parametrize("name", BAD, ids=ascii)
@pytest.mark.parametrize("option", ["experiment", "run_name"])
def test_a_name_that_no_store_can_hold_is_refused(option: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{option.replace('_', '-')} .{{,130}}: it must ") as raised:
        RunConfig.from_dict({"strategy": "single", option: name}, where="")
    assert len(str(raised.value)) < 250


def test_every_name_is_fitted_to_a_good_one_and_has_a_folder_of_its_own() -> None:
    assert not any(names.name_problem(names.fitted(name, "default")) for name in (*GOOD, *BAD))
    folders = {names.folder_name(name) for name in (*GOOD, *BAD)}
    assert len(folders) == len(GOOD + BAD)
    assert all(folder.isascii() and len(folder) <= 80 and folder[0] != "." for folder in folders)
