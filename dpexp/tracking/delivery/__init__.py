"""Delivery: a journal to its MLflow run, every point once.

``upload`` delivers it by ``mlflow_run``, which writes a Record into one MLflow run, if ``permission`` says
that it may; the ``ledger`` records which store has received what; ``sync`` delivers later, ``check`` compares
a run with its store, ``stored`` asks whether that still has the last points of all, ``repair`` mends a run.
The uploader process, the commands and the rest of ``tracking``
import it; it may import ``record`` and the rest of ``tracking``. Start reading in ``upload``.
"""
