"""What README and docs/ print: their commands, and the files that their examples show."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Block(NamedTuple):
    """A fenced block of a page: its language and its text."""

    language: str
    text: str

    @property
    def needs(self) -> str:
        """What its commands need, as its first comment says: ``two hosts``."""
        found = re.search(r"^# needs (.+)$", self.text, re.MULTILINE)
        return found[1] if found else ""

    def commands(self) -> list[list[str]]:
        """The words of each command of Python, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        printed = [line for line in lines if line.split(" ")[0] in ("python", "torchrun")]
        return [shlex.split(line, comments=True) for line in printed]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


def write_examples(page: str, folder: Path) -> None:
    """Write the Python examples of a page that begin with their file's name, as ``# layout.py``."""
    for block in blocks(page):
        name = re.match(r"# (\w+\.py)\b", block.text)
        if block.language == "python" and name:
            (folder / name[1]).write_text(block.text)
