"""The numbers on a screen by their names, as text: what two screens both name must read the same."""

import html
import re

TIME = r"[\d.,]+ (?:µs|ms|s)\b"
_NAMED = {
    "step": rf"({TIME}) a step, IQR",
    "IQR of steps": rf"{TIME} a step, IQR ({TIME})",
    "n": r" a step, IQR [^,;]+, n (\d+)",
    "steps in the median": r"median of (\d+) steps?\b of",
    "rows": r"median of \d+ steps? of (\d+) rows?",
    "samples/s": r"([\d,.]+) samples/s(?! by wall clock)",
    "samples/s by wall clock": r"([\d,.]+) samples/s by wall clock",
    "bound of noisy steps": rf"(?<!they )cannot be judged: the median of \d+ steps lies between ({TIME})",
    "time of interruptions": r"interrupted: \d+ of \d+ steps hold ([\d.]+%) of the time",
    "cover": r"phases cover ([\d.]+%) of it",
    "phase-timed steps": r"(?:medians, of|medians of) (\d+) steps?\b",
    "first loss": r"loss (\S+) at first",
    "last loss": r"at first, (\S+) at last",
    "output error": r"errors to a single device: outputs (\S+?),",
    "limit": r"errors to a single device: .*?; limit (\S+)",
    "moved forward": r"forward moves ([\d.,]+ \w+):",
    "moved backward": r"backward moves ([\d.,]+ \w+):",
}


def plain(screen: str) -> str:
    """The text of a screen without colours, tags and marks, in one line for each of its own."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", screen)
    if "<" in text and "</" in text:
        text = re.sub(r"<(?:style|script)>.*?</(?:style|script)>", "", text, flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<(?:/?li|/?tr|/?h\d|/?p)\b[^>]*>", "\n", text)))
    return re.sub(r"\\([\\`*_\[\]|#~])", r"\1", html.unescape(text))


def named_numbers(screen: str, phases: list[str]) -> dict[str, set[str]]:
    """{name: the texts that the screen has for it}, with ``time of PHASE`` and ``share of PHASE``."""
    text = plain(screen)
    found = {name: set(re.findall(pattern, text)) for name, pattern in _NAMED.items()}
    for phase in phases:
        row = rf"^\W*{re.escape(phase)}[ |]+(?:[█·]*[ ]+)?(?:([\d.]+%)[ ]+)?({TIME}) \[IQR ({TIME})\]"
        rows = re.findall(row, text, re.MULTILINE)
        rows += [
            ("", ms, "") for ms in re.findall(rf"^.*?(?<![\w-]){re.escape(phase)} ({TIME})  ", text, re.M)
        ]
        for place, name in enumerate(("share", "time", "IQR")):
            found[f"{name} of {phase}"] = {row[place] for row in rows if row[place]}
    return {name: texts for name, texts in found.items() if texts}
