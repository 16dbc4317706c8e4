"""The page about models of Hugging Face works; ``test_standard_models`` verifies such models."""

from pathlib import Path

import pytest
from command_lines import CommandLines
from printed import ROOT, blocks, write_examples

PAGE = "docs/models-and-data.md"


@pytest.mark.slow
def test_the_commands_of_the_page_work(tmp_path: Path, command_lines: CommandLines, dpexp_home: Path) -> None:
    (block,) = [block for block in blocks(PAGE) if block.needs == "transformers"]
    write_examples(PAGE, tmp_path)
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    for words in block.commands():
        done = command_lines.run(words[2:], tmp_path, DPEXP_HOME=str(dpexp_home), DPEXP_TRACK="0")
        assert done.code == 0, done.stderr
