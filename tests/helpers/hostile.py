"""Hostile texts, and Records that have them wherever a Record has text from outside."""

import random
from typing import Any

from record_factory import hybrid, whole

from dpexp.record.record import Record

FRAGMENTS = (
    *("\x1b[31;8mred", "\x1b]0;title\x07", "\x1b]8;;http://evil.invalid\x1b\\a\x1b]8;;\x1b\\", "\x1bc"),
    *("\x1b[2J", "\x9b31m", "\x9d0;c1\x9c", "\x90q\x9c", "\a", "\b\b\b", "\r", "\rover", "\x0b\x0c"),
    *("\x7f", "\0", "\x1b", "\u202egnp.exe", "\u2066a\u2069", "\u200fb", "\u2028", "\u2029", "\ufeff"),
    *("\U000e0041", "\ud83d", "\udc00", "\n", "\n\n", "\t", "\r\n", "error: forged", "\n# heading\n"),
    *("\n- item", "\n1. one", "\n===\n", "\n    code", "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)"),
    *(";=1+1", "|=1+1", '",=1+1', "\t=1", '=HYPERLINK("x")', "</script><script>alert(1)</script>"),
    *("<img src=x onerror=alert(1)>", '" onmouseover="alert(1)', "' x='", "<!--", "]]>", "&lt;b&gt;"),
    *("javascript:alert(1)", "</style>", "</textarea>", "{{7*7}}", "${x}", "$a$", "[a](http://evil.invalid)"),
    *("![a](http://evil.invalid/x.png)", "<http://evil.invalid>", "http://evil.invalid", "| a | b |", "\\|"),
    *("```\n", "`", "``", "~~~\n", "**bold**", "__bold__", "*", "_", "[x]: http://evil.invalid", "> quote"),
    *("www.evil.invalid", "---", "[red]rich[/red]", ":boom:", "%s%n", "{0}", "é", "名前", "💥", "plain"),
)
_STATED = {"schema", "status", "started", "ended", "run_id", "config_digest", "steps", "summary", "damage"}
"""What a reader computes with, or dpexp itself states."""
_NAMED = {"phases", "memory", "metrics"}
"""What has names as keys."""


def text(rng: random.Random) -> str:
    """A few fragments in any order."""
    return "".join(rng.choices(FRAGMENTS, k=rng.randint(1, 4)))


def record(rng: random.Random) -> Record:
    """A run with hostile names of hosts, modules, phases, devices and errors, each the same everywhere."""
    found = rng.choice([whole(2, modules=2), hybrid(), whole(1, virtual=False)])
    if rng.random() < 0.3:
        found.error = {"type": "ValueError", "message": "no", "traceback": "Traceback"}
    found.status = "failed" if found.error else "finished"
    names: dict[str, str] = {}

    def hostile(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {hostile(name) if key in _NAMED else name: hostile(item) for name, item in value.items()}
        if isinstance(value, list):
            return [hostile(item) for item in value]
        return names.setdefault(value, text(rng)) if isinstance(value, str) and rng.random() < 0.7 else value

    changed = {
        key: value if key in _STATED else hostile(value, key) for key, value in found.to_dict().items()
    }
    return Record.from_dict(changed)
