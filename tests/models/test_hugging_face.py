"""The page about models of Hugging Face works; ``test_standard_models`` verifies such models."""

from pathlib import Path

import pytest
from helpers.command_lines import script
from helpers.printed import ROOT, blocks, write_examples

PAGE = "docs/models-and-data.md"


@pytest.mark.slow
def test_the_commands_of_the_page_work(tmp_path: Path, dpexp_home: Path) -> None:
    (block,) = [block for block in blocks(PAGE) if block.needs == "transformers"]
    write_examples(PAGE, tmp_path)
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    for words in block.commands():
        done = script("run.py", *words[2:], folder=tmp_path, DPEXP_TRACK="0")
        assert done.returncode == 0, done.stderr
