"""Index: the table in ``experiments/README.md``, a row for each experiment."""

from collections import Counter
from pathlib import Path

from dpexp.report.markdown import escape
from dpexp.study.experiment.experiment import CONFIG, README, ClaimOutcome, Experiment, load_experiment
from dpexp.study.experiment.readme import ExperimentReadme, date, machine, records_of, replace_block

BLOCK = "index"


def write_index(folder: Path) -> None:
    """Write a new table into the README of a folder of experiments, if it has one."""
    if (folder / README).is_file():
        (folder / README).write_text(with_index(folder), encoding="utf-8")


def is_outdated(folder: Path) -> bool:
    """Whether the folder's README has another table than its experiments give."""
    path = folder / README
    return path.is_file() and with_index(folder) != path.read_text(encoding="utf-8")


def _index_row(readme: ExperimentReadme) -> tuple[str, ...]:
    experiment = readme.experiment
    link, question = f"[{experiment.name}]({experiment.name}/)", escape(experiment.question)
    if not readme.main_runs:
        return (link, question, "not measured", "-", "-", "-")
    records = records_of(readme.main_runs)
    counts = Counter(verdict.outcome for verdict in readme.main_verdicts)
    outcomes = ", ".join(f"{counts[name]} {name}" for name in reversed(ClaimOutcome) if counts[name])
    answer = readme.answer().replace("|", "\\|")
    return (link, question, answer, escape(machine(records[0])), date(records), outcomes)


def with_index(folder: Path) -> str:
    """The text of ``experiments/README.md`` with a new table, a row for each experiment."""
    path = folder / README
    text = path.read_text(encoding="utf-8")
    head = ("experiment", "question", "answer", "machine", "date", "claims")
    rows = [_index_row(ExperimentReadme(experiment)) for experiment in _experiments(folder, text)]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows)]
    return replace_block(text, BLOCK, "\n".join(lines), path)


def _experiments(folder: Path, text: str) -> list[Experiment]:
    """Every experiment of the folder, in the order of the links in the index's text, then by name."""
    lesson = text.partition(f"<!-- begin: {BLOCK} -->")[0]
    experiments = [load_experiment(path.parent) for path in folder.glob(f"*/{CONFIG}")]
    places = {experiment.name: lesson.find(f"]({experiment.name}/)") for experiment in experiments}
    return sorted(experiments, key=lambda one: (places[one.name] < 0, places[one.name], one.name))
