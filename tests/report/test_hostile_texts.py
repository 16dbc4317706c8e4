"""Texts of a Record never control a terminal, a spreadsheet or a page."""

import ast
import json
import os
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import hostile
import pytest
from command_lines import ROOT, script
from markdown_it import MarkdownIt
from markdown_it.token import Token
from record_factory import hybrid, whole

from dpexp import report
from dpexp.config.printable import printable
from dpexp.record.journal import Journal
from dpexp.record.record import Record, finish
from dpexp.record.runs import RunSummary
from dpexp.record.view import RecordView
from dpexp.report import comparison_page, listing, page, style, timeline
from dpexp.report.compare import compare
from dpexp.study.experiment import readme
from dpexp.tracking.content import content

SEEDS = range(40)
OUR_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CODE = re.compile(r"^(`{3,})text\n.*?^\1$|^[^\n]*`[^\n]*$", re.MULTILINE | re.DOTALL)


def obeyed(text: str) -> list[str]:
    """The characters of a text that a terminal obeys, or that no terminal can have; by their category."""
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    found = {each for each in set(text) if unicodedata.bidirectional(each) in directions}
    kinds = {each: unicodedata.category(each) for each in set(text) - {"\n", "\t"}}
    return sorted(found | {each for each, kind in kinds.items() if kind in ("Cc", "Cs", "Zl", "Zp")})


class Tags(HTMLParser):
    """The tags of a page with the names of their attributes, how many of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: Counter[tuple[str, ...]] = Counter()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag, *sorted(name for name, _ in attrs)] += 1


def kinds(tokens: Iterable[Token]) -> set[str]:
    """The kinds of what a Markdown text consists of."""
    return {kind for token in tokens for kind in (token.type, *kinds(token.children or ()))}


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [hostile.record(random.Random(seed)) for seed in SEEDS]


@pytest.fixture(scope="module")
def harmless() -> list[Record]:
    failed = whole(
        2, modules=2, error={"type": "ValueError", "message": "no", "traceback": "x"}, status="failed"
    )
    return [whole(2, modules=2), hybrid(), whole(1, virtual=False), failed]


@pytest.fixture
def home(records: list[Record], dpexp_home: Path) -> Path:
    """Six of the Records as runs, one in a folder with a hostile name."""
    for number, record in enumerate(records[:6]):
        with Journal(dpexp_home / "runs", f"{number:012x}") as journal:
            known = record.to_dict().items()
            journal.set({key: value for key, value in known if key not in ("summary", "damage", "run_id")})
        finish(journal.path)
    os.rename(journal.folder, journal.folder.with_name("\x1b[2J\x9b\u202ename"))
    return dpexp_home


def test_the_texts_are_hostile(records: list[Record]) -> None:
    every = "".join(json.dumps(record.to_dict(), ensure_ascii=False) for record in records)
    missing = [each for each in hostile.FRAGMENTS if json.dumps(each, ensure_ascii=False)[1:-1] not in every]
    assert missing == []
    assert len(obeyed("".join(hostile.FRAGMENTS))) > 18


def test_no_summary_controls_a_terminal(records: list[Record]) -> None:
    for record in records:
        assert not obeyed(report.summary(record, color=False, full=True))
        colored = report.summary(record, color=True)
        assert not obeyed(OUR_COLOURS.sub("", colored))
        assert "\x1b[31;8m" not in colored
        listed = listing.runs([RunSummary.of(record)], {})
        assert not obeyed(listed)
        assert listed.count("\n") == 1


@pytest.mark.usefixtures("home")
def test_no_command_controls_a_terminal() -> None:
    runs = [f"{number:012x}" for number in range(5)]
    for words in (
        *(("runs.py", "list", *more) for more in ((), ("--json",))),
        *(("runs.py", "show", runs[0], *more) for more in ((), ("--json",))),
        ("report.py", *runs),
        ("runs.py", "check"),
        ("runs.py", "reproduce", runs[1]),
        ("runs.py", "show", "\x1b[2J"),
        ("runs.py", "remove", runs[2]),
    ):
        done = script(*words)
        assert done.stdout + done.stderr
        assert not obeyed(done.stdout + done.stderr), words
        if "--json" in words:
            json.loads(done.stdout)


def test_json_has_the_texts_as_they_are(home: Path, records: list[Record]) -> None:
    listed = {row["run_id"]: row["name"] for row in json.loads(script("runs.py", "list", "--json").stdout)}
    known = {f"{number:012x}": record.name for number, record in enumerate(records[:5])}
    assert {run: listed[run] for run in known} == {run: without_halves(name) for run, name in known.items()}


def without_halves(text: str) -> str:
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):x}", text)


def test_no_note_has_other_markup_than_its_own(records: list[Record], harmless: list[Record]) -> None:
    render = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    own = set.union(*(kinds(render.parse(report.note(record))) for record in harmless)) | {
        "text_special",
        "softbreak",
    }
    for record in records:
        note = report.note(record)
        assert not obeyed(note)
        tokens = render.parse(note)
        assert kinds(tokens) <= own
        assert sum(token.type == "heading_open" for token in tokens) == note.count("\n### ") + 1
        assert not re.search(r"(?<![^\W_])(https?://|www\.)", CODE.sub("", note))


def test_no_readme_has_markup_of_a_machine(records: list[Record]) -> None:
    render = MarkdownIt("commonmark")
    for record in records:
        text = "\n".join(readme._setup("kind", [record]))
        assert not obeyed(text)
        assert kinds(render.parse(text)) <= {
            *("bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close", "paragraph_open"),
            *("paragraph_close", "inline", "text", "text_special", "code_inline", "softbreak"),
        }


def test_no_page_has_other_tags_than_its_own(records: list[Record], harmless: list[Record]) -> None:
    def pages(record: Record) -> list[str]:
        return [report.html(record), page.timeline_page(RecordView(record), timeline.steps(record))]

    own = [set().union(*(Tags(pages(record)[number]).found for record in harmless)) for number in range(2)]
    for record in records:
        for text, tags in zip(pages(record), own, strict=True):
            assert not obeyed(text)
            assert Tags(text).found.keys() <= tags
            assert text.count("<script") == text.count("</script>") <= 1


def test_comparisons_are_pages_and_data_without_other_markup(home: Path, tmp_path: Path) -> None:
    page, data = comparison_page.write_comparison(
        compare(sorted((home / "runs").iterdir())), tmp_path / "out"
    )
    assert not obeyed(page.read_text() + data.read_text())
    assert not {tag for tag, *_ in Tags(page.read_text()).found} & {"script", "a"}


def test_mlflow_gets_no_control_characters(records: list[Record]) -> None:
    for record in records:
        for values, limit in (
            (content.tags(record), content.MAX_TAG),
            (content.params(record), content.MAX_PARAM),
        ):
            fitted, changed = content.fit(values, limit)
            assert not obeyed("".join([*fitted, *fitted.values()]))
            assert {key: values[key] for key in changed} == changed


def test_no_text_of_a_figure_is_a_formula_or_a_control_character() -> None:
    for seed in SEEDS:
        text = style.escape(hostile.text(random.Random(seed)))
        assert not obeyed(text)
        assert "$" not in text.replace(r"\$", "")


def test_what_was_json_stays_json_of_the_same_value() -> None:
    texts = [hostile.text(random.Random(seed)) for seed in range(500)]
    for ascii_only in (True, False):
        text = json.dumps(texts, indent=1, ensure_ascii=ascii_only)
        assert not obeyed(printable(text))
        assert json.loads(printable(text)) == texts


def test_commands_print_by_one_function() -> None:
    """All that the package prints is printable, but for reports and what the code of a model prints."""
    found = {}
    for path in (ROOT / "dpexp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print",
                "typer.echo",
                "tqdm.write",
                "bar.write",
            ):
                first = node.args[0]
                is_safe = isinstance(first, ast.Constant) or ast.unparse(first).startswith("printable(")
                found[f"{path.relative_to(ROOT)}: {ast.unparse(first)}"] = is_safe
    assert len(found) > 5
    assert {each for each, is_safe in found.items() if not is_safe} == {
        "dpexp/commands/command_line/output.py: report",
        "dpexp/commands/main.py: f'dpexp {__version__}'",
        "dpexp/distributed/launch.py: redact(line)",
    }
