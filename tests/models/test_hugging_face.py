"""Models of Hugging Face are verified, and the page about them works: `.ci/versions` has the package."""

from pathlib import Path

import pytest
from command_lines import CommandLines
from every_model import HERE, verified
from hub import LANGUAGE
from printed import ROOT, blocks, write_examples

pytestmark = pytest.mark.extra("transformers")

PAGE = "docs/models-and-data.md"


@pytest.mark.parametrize("model", [*LANGUAGE, "vit"])
def test_a_model_of_hugging_face_in_replicas_equals_a_single_device(model: str) -> None:
    data = "random:samples=17" if model == "vit" else f"text:{HERE / 'README.md'}"
    options = {"strategy": "whole", "virtual": 2, "batch_size": 7, "data": data}
    result = verified(options | {"model": f"{HERE / 'hub.py'}:{model}"})
    assert result["passed"], result


def test_the_commands_of_the_page_work(tmp_path: Path, command_lines: CommandLines, dpexp_home: Path) -> None:
    (block,) = [block for block in blocks(PAGE) if block.needs == "transformers"]
    write_examples(PAGE, tmp_path)
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    for words in block.commands():
        done = command_lines.run(words[2:], tmp_path, DPEXP_HOME=str(dpexp_home), DPEXP_TRACK="0")
        assert done.code == 0, done.stderr
