"""A comparison as files: Markdown with its figures beside it, and one self-contained HTML page."""

import base64
import itertools
from pathlib import Path

from dpexp.config.printable import in_html
from dpexp.report.compare import tables
from dpexp.report.compare.figures import scaling_figure, stacked_phases_figure
from dpexp.report.compare.grouping import Comparison
from dpexp.report.figures import style
from dpexp.report.render import markdown, page

MOST_FIGURES = 4
"""At most this many groups have figures."""
_TITLE = "Comparison of runs"


def write_comparison(compared: Comparison, folder: Path) -> list[Path]:
    """Write ``report.md``, ``report.html`` and their PNGs into the folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = _write_figures(compared, folder)
    text, html = f"# {_TITLE}\n", ""
    for number, section in enumerate(tables.comparison_sections(compared)):
        beside = figures.get(number, [])
        text += f"\n{markdown.markdown_text([section])}"
        text += "".join(f"\n![{path.stem}]({path.name})\n" for path in beside)
        html += page.section(section) + "".join(map(_inline, beside))
    written = {folder / "report.md": text, folder / "report.html": page.document(_TITLE, html)}
    for path, content in written.items():
        path.write_text(content, encoding="utf-8", errors="backslashreplace")
    return [*written, *itertools.chain.from_iterable(figures.values())]


def _write_figures(compared: Comparison, folder: Path) -> dict[int, list[Path]]:
    """The files of each group's figures, by its place: those of the first groups with several cells."""
    several = [group for group in compared.groups if len(group.cells) > 1] or compared.groups
    written = {}
    for group in several[:MOST_FIGURES]:
        place = compared.groups.index(group)
        drawn = {"phases": stacked_phases_figure(group), "scaling": scaling_figure(group)}
        figures = {folder / f"{name}-{place + 1}.png": figure for name, figure in drawn.items()}
        for path, figure in figures.items():
            if figure is not None:
                figure.savefig(path, dpi=style.DPI)
        written[place] = [path for path, figure in figures.items() if figure is not None]
    return written


def _inline(path: Path) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{in_html(path.stem)}" src="data:image/png;base64,{content}"></p>'
