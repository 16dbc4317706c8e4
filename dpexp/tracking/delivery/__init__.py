"""Delivery: a journal to its MLflow run, every point once.

``upload`` delivers it by ``mlflow_run``, which writes a Record into one MLflow run; the ``ledger`` records
which store has received what; ``sync`` delivers later. The uploader process, the commands and the rest of
``tracking`` import it; it may import ``record`` and the rest of ``tracking``. Start reading in ``upload``.
"""
