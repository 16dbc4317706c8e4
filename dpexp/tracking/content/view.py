"""View: which columns of MLflow's list of runs a link of dpexp opens, from the left, and how wide they are.

MLflow keeps it as a tag of the experiment (a «shared view»), in which an order of columns needs their widths,
too. On a page of 1,280 pixels the first five are in sight; *Exit shared view* leaves it.
"""

import json

from dpexp.record.figures.figure import At
from dpexp.record.figures.registry import figures

VIEW = "dpexp"
"""The name of the view of an experiment's runs that dpexp's links open."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
_NAME, _CREATED, _DURATION = "attributes.`Run Name`", "runDateAndNestInfo", "duration"
_FIRST = ("step_ms", "speed_up", "samples_per_s")
_WIDTHS = {
    _NAME: 202,
    _CREATED: 138,
    "tags.`dpexp.strategy`": 124,
    "tags.`dpexp.verified`": 124,
    **{f"metrics.`{name}`": 114 for name in (*_FIRST, *(figure.name for figure in figures(At.COLUMN)))},
    "tags.`dpexp.execution`": 130,
    _DURATION: 90,
}
COLUMNS = tuple(column for column in _WIDTHS if "dpexp." in column or column.startswith("metrics."))
"""From the left, after the name of a run and its time."""
VIEW_STATE = json.dumps({"selectedColumns": COLUMNS, "columnOrder": list(_WIDTHS), "columnWidths": _WIDTHS})
"""The value of the tag."""
