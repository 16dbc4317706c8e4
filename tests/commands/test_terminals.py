"""What a run prints on a real terminal: as wide as it, and in colour."""

import re

import pytest
from helpers.in_terminal import in_terminal

CODE = """
import os, sys
from dpexp.commands.run import app

sys.stderr = open(os.devnull, "w")
words = "whole --virtual 2 --steps 8 --warmup 1 --phase-steps 3 --threads 1 --no-check --no-track --full"
app(words.split(), standalone_mode=False)
"""


@pytest.mark.usefixtures("dpexp_home")
def test_a_run_is_summed_up_in_the_width_and_the_colours_of_its_terminal() -> None:
    """Its code's output is redirected meanwhile."""
    shown = in_terminal(CODE, columns=70).replace("\r", "")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert plain.startswith("Run whole-")
    assert 60 < max(map(len, plain.splitlines())) <= 70
    assert re.search(r"\x1b\[[\d;]*38;", shown)
