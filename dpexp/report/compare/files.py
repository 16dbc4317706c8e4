"""A comparison as files: Markdown with its figures beside it, and one self-contained HTML page."""

import base64
import html
from pathlib import Path

from dpexp.report.compare import tables
from dpexp.report.compare.figures import scaling_figure, stacked_phases_figure
from dpexp.report.compare.grouping import Comparison
from dpexp.report.figures import files
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
    text = files.write_text(folder / "report.md", f"# {TITLE}\n\n{markdown.text(sections)}{links}")
    images = "".join(_inline(path) for path in figures)
    content = page.document(TITLE, page.sections(sections) + images)
    return [text, files.write_text(folder / "report.html", content), *figures]


def _write_figures(compared: Comparison, folder: Path) -> list[Path]:
    several = [group for group in compared.groups if len(group.cells) > 1] or compared.groups
    figures = {
        f"phases-{number}": stacked_phases_figure(group)
        for number, group in enumerate(several[:MOST_FIGURES], 1)
    }
    figures["scaling"] = scaling_figure(compared)
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    return [files.write_picture(folder / f"{name}.png", figure) for name, figure in drawn.items()]


def _inline(path: Path) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{html.escape(path.stem)}" src="data:image/png;base64,{content}"></p>'
