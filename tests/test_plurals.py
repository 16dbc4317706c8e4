"""No text says ``1 steps``: what counts things in a text calls ``plural``, unless the count is never one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from command_lines import ROOT

from dpexp.config.ranges import plural

NOUNS = (
    "batches|bytes|calls|cells|devices|epochs|experiments|files|ids|jobs|lines|modules|numbers|parameters|points|"
    "processes|ranks|replicas|rounds|rows|runs|samples|sequences|steps|tensors|threads|times|values"
)
COUNTED = re.compile(rf" ({NOUNS})\b(?![/'])")
NEVER_ONE = {
    "commands/command_line/config_options.py: {size} bytes": "more than a config has",
    "commands/sweep_results.py: {current.limit} rounds": "a sweep that looks has two rounds and more",
    "data/sources/user_data.py: {samples} samples": "more than a run can take",
    "data/sources/user_samples.py: {len(value)} tensors": "only of more than two",
    "distributed/device_selection.py: {count} devices": "the text of an example",
    "engine/dry_run.py: {ranks} ranks": "only of several ranks",
    "engine/prepare.py: {config.accumulate} batches": "only where --accumulate is more than one",
    "parallel/scatter_gather.py: {len(outputs)} replicas": "one replica's outputs are not joined",
    "parallel/scatter_gather.py: {other} rows": "beside another number of rows",
    "record/consistency/figures.py: {calls} calls": "a number with a fraction, or zero",
    "record/consistency/figures.py: {found['steps']} steps": "three steps are profiled",
    "record/consistency/shapes.py: {sorted(leading)} rows": "several numbers",
    "report/analysis/stages.py: {figures['of_bound']} times": "a factor",
    "report/compare/grouping.py: {' and '.join(kinds)} runs": "no number",
    "report/figures/boxes.py: {count} devices": "only of several devices",
    "report/figures/boxes.py: {len(names)} modules": "one module is named",
    "report/findings/imbalance.py: {_rows_for_all(group.rows, count)} rows": "what several devices need",
    "report/findings/overheads.py: {growth.many} rows": "more rows than the fewer",
    "report/findings/overheads.py: {rows} rows": "more than the batch has",
    "report/findings/steadiness.py: {usual.n} steps": "a drift, or outliers, of many",
    "report/findings/reliability.py: {usual.n} steps": "half of them lie in a range",
    "report/render/listing.py: {found['parameters']} parameters": "a text, as 1.2 million",
    "report/render/listing.py: {row['calls']} calls": "only of several calls",
    "report/sections.py: {len(modules)} modules": "up to four modules are named",
    "report/sections.py: {len(sizes)} modules": "a part of several modules",
    "strategies/hybrid/hybrid.py: {len(devices)} devices": "only of several devices",
    "strategies/place.py: {len(names)} modules": "one module is named",
    "strategies/single.py: {len(devices)} devices": "only of several devices",
    "study/experiment/claims.py: {len(cells)} cells": "of one cell its own outcome is said",
    "study/experiment/figure.py: {group.rows} rows": "its digest is in committed figures",
    "study/experiment/readme.py: {len(records)} runs": "committed READMEs have it",
    "study/experiment/readme.py: {looks[1]} rounds": "a sweep that looks has two rounds and more",
    "study/reproduce/comparisons.py: {steps or 'some'} steps": "verified steps are several",
    "study/sweep/grid.py: {cells * repeats} runs": "more than a sweep has",
    "study/sweep/grid.py: {cells} cells": "more than a sweep has, in rounds",
    "study/sweep/grid.py: {repeats} rounds": "more than a sweep has, with cells",
    "study/sweep/order.py: {len(cells)} cells": "only of more than two cells",
    "tracking/content/tables.py: {n} rows": "only of more than 10,000 rows",
    "verification/diagnosis/patterns.py: {named} rows": "those of several shards",
    "verification/diagnosis/patterns.py: {scale} times": "a factor",
    "verification/diagnosis/patterns.py: {shards} times": "a factor",
    "verification/prove.py: {sorted(rows)} rows": "several numbers",
    "verification/touched_rows.py: {len(tables[name].weight)} rows": "only of large tables",
}
"""Counts beside a noun, and why they are never one."""


def counts(path: Path) -> Iterator[str]:
    """The values in f-strings of a file that a noun in plural follows."""
    for text in ast.walk(ast.parse(path.read_text())):
        if isinstance(text, ast.JoinedStr):
            for value, after in zip(text.values, text.values[1:], strict=False):
                followed = COUNTED.match(str(after.value)) if isinstance(after, ast.Constant) else None
                if isinstance(value, ast.FormattedValue) and followed and not is_constant(value.value):
                    yield f"{{{ast.unparse(value.value)}}} {followed[1]}"


def is_constant(value: ast.expr) -> bool:
    """Whether it is a limit of the package, or a number that ``units`` rounds."""
    return ast.unparse(value).isupper() or ast.unparse(value).startswith("units.")


def test_what_counts_things_in_a_text_knows_one_of_them() -> None:
    package = ROOT / "dpexp"
    found = [
        f"{path.relative_to(package)}: {count}" for path in package.rglob("*.py") for count in counts(path)
    ]
    assert set(found) - set(NEVER_ONE) == set()
    assert set(NEVER_ONE) - set(found) == set(), "these are no longer there"


def test_one_of_a_thing_has_no_ending() -> None:
    assert [plural(1, noun) for noun in ("batch", "step", "box")] == ["1 batch", "1 step", "1 box"]
    assert [plural(count, "batch") for count in (0, 2)] == ["0 batches", "2 batches"]
