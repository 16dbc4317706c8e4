"""Columns: what a link of dpexp opens: the columns of MLflow's list of runs, from the left, and first charts.

MLflow keeps it as a tag of the experiment (a «shared view»), in which an order of columns needs their widths,
too. On a page of 1,280 pixels the first five are in sight; *Exit shared view* leaves it.
"""

import json

from dpexp.record.figures import At, figures

VIEW = "dpexp"
"""The name of the view of an experiment's runs that dpexp's links open."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
_METRICS = ("step_ms", "speed_up", "samples_per_s", *(figure.name for figure in figures(At.COLUMN)))
_WIDTHS = {
    "attributes.`Run Name`": 202,
    "runDateAndNestInfo": 148,
    "tags.`dpexp.strategy`": 124,
    "tags.`dpexp.verified`": 124,
    **{f"metrics.`{name}`": 114 for name in _METRICS},
    "tags.`dpexp.judged`": 114,
    "tags.`dpexp.execution`": 130,
    "duration": 90,
}
_SECTIONS = {
    "loss and step time": ("loss", "time_ms/step", "step_ms"),
    "Model metrics": (),
    "phases_ms": (),
    "time_ms": (),
    "System metrics": (),
}
"""The sections of charts, with MLflow's names, and the first charts of each: of metrics of these names."""

VIEW_STATE = json.dumps(
    {
        "selectedColumns": [column for column in _WIDTHS if column.startswith(("tags.", "metrics."))],
        "columnOrder": list(_WIDTHS),
        "columnWidths": _WIDTHS,
        "compareRunSections": [
            {"uuid": name, "name": name, "display": True, "isReordered": False, "isGenerated": True}
            for name in _SECTIONS
        ],
        "compareRunCharts": [
            {"uuid": metric, "metricKey": metric, "displayName": metric, "metricSectionId": name}
            | {"type": "BAR", "isGenerated": True, "deleted": False}
            for name, metrics in _SECTIONS.items()
            for metric in metrics
        ],
        "isAccordionReordered": True,
    }
)
"""The value of the tag."""
