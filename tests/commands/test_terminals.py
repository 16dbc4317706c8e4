"""What a run prints on a real terminal: as wide as it, and in colour."""

import re

import pytest
from helpers.in_terminal import in_terminal

WIDTHS = (60, 80, 120, 200)
CODE = """
import fcntl, os, struct, sys, termios
from dpexp.commands.run import app

sys.stderr = open(os.devnull, "w")
words = "whole --virtual 2 --steps 8 --warmup 1 --phase-steps 3 --batch-size 31 --lr 0.0123456 --seed 12345 "
words = (words + "--threads 1 --no-check --no-track --full").split()
for width in {widths}:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    app(words, standalone_mode=False)
    print("END", flush=True)
    if width == {plain}:
        os.environ["NO_COLOR"] = "1"
"""


@pytest.mark.usefixtures("dpexp_home")
def test_a_run_is_summed_up_in_the_width_and_the_colours_of_its_terminal() -> None:
    """Its code's output is redirected meanwhile; the last summary is that of NO_COLOR."""
    widths = (*WIDTHS, 80)
    shown = in_terminal(CODE.format(widths=widths, plain=WIDTHS[-1]), columns=80).replace("\r", "")
    *summaries, rest = shown.split("END\n")
    assert len(summaries) == len(widths), rest
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", text) for text in summaries]
    for text, width in zip(plain, widths, strict=True):
        assert text.startswith("Run whole-")
        assert max(map(len, text.splitlines())) <= width
    colored = [bool(re.search(r"\x1b\[[\d;]*38;", text)) for text in summaries]
    assert colored == [True, True, True, True, False]
