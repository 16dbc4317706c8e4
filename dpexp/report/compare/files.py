"""A comparison as files: Markdown with its figures beside it, and one self-contained HTML page.

The figures beside Markdown are PNGs; those in the page are SVGs, which follow its light or dark theme.
"""

from pathlib import Path

from matplotlib.figure import Figure

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
    figures = _figures(compared)
    text, html = f"# {_TITLE}\n", ""
    for number, section in enumerate(tables.comparison_sections(compared)):
        beside = figures.get(number, {})
        text += f"\n{markdown.markdown_text([section])}"
        text += "".join(f"\n![{name}]({name}.png)\n" for name in beside)
        html += page.section(section) + "".join(_inline(*named) for named in beside.items())
    written = {folder / "report.md": text, folder / "report.html": page.document(_TITLE, html)}
    for path, content in written.items():
        path.write_text(content, encoding="utf-8", errors="backslashreplace")
    pictures = {
        folder / f"{name}.png": figure for beside in figures.values() for name, figure in beside.items()
    }
    for path, figure in pictures.items():
        style.save_png(figure, path)
    return [*written, *pictures]


def _figures(compared: Comparison) -> dict[int, dict[str, Figure]]:
    """The figures of each group by name, by its place: those of the first groups with several cells."""
    several = [group for group in compared.groups if len(group.cells) > 1] or compared.groups
    found = {}
    for group in several[:MOST_FIGURES]:
        place = compared.groups.index(group)
        drawn = {"phases": stacked_phases_figure(group), "scaling": scaling_figure(group)}
        found[place] = {f"{name}-{place + 1}": figure for name, figure in drawn.items() if figure is not None}
    return found


def _inline(name: str, figure: Figure) -> str:
    return f'<p role="img" aria-label="{in_html(name)}">{style.themed_svg(figure)}</p>'
