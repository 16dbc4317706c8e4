"""A comparison as files: Markdown with its figures beside it, and one self-contained HTML page."""

import base64
from html import escape
from pathlib import Path

from dpexp.report.compare import tables
from dpexp.report.compare.figures import scaling_figure, stacked_phases_figure
from dpexp.report.compare.grouping import Comparison
from dpexp.report.figures import style
from dpexp.report.render import markdown, page

MOST_FIGURES = 4
"""At most this many groups have a figure of their phases."""
TITLE = "Comparison of runs"


def write(compared: Comparison, folder: Path) -> list[Path]:
    """Write ``report.md``, ``report.html`` and their PNGs into the folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = _write_figures(compared, folder)
    sections = tables.sections(compared)
    links = "".join(f"\n![{path.stem}]({path.name})\n" for path in figures)
    text = f"# {TITLE}\n\n{markdown.text(sections)}{links}"
    html = page.document(TITLE, "".join([*map(page.section, sections), *map(_inline, figures)]))
    written = {folder / "report.md": text, folder / "report.html": html}
    for path, content in written.items():
        path.write_text(content, encoding="utf-8", errors="backslashreplace")
    return [*written, *figures]


def _write_figures(compared: Comparison, folder: Path) -> list[Path]:
    several = [group for group in compared.groups if len(group.cells) > 1] or compared.groups
    numbered = enumerate(several[:MOST_FIGURES], start=1)
    figures = {f"phases-{number}": stacked_phases_figure(group) for number, group in numbered}
    figures["scaling"] = scaling_figure(compared)
    drawn = {folder / f"{name}.png": figure for name, figure in figures.items() if figure is not None}
    for path, figure in drawn.items():
        figure.savefig(path, dpi=style.DPI)
    return list(drawn)


def _inline(path: Path) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(path.stem)}" src="data:image/png;base64,{content}"></p>'
