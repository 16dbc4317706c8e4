"""Tracking: Records into MLflow. The only part of dpexp that imports mlflow, and never in the main process.

::

    main process                          uploader process (python -m dpexp.tracking.worker)
    ------------                          --------------------------------------------------
    Journal --- append, sync ---> runs/<run_id>/journal.jsonl --- read on ---> Upload ---> MLflow
    Uploader --- pipe: open, read on, finish ------------------> Worker
             <-- pipe: one Delivery -----------------------------

``uploader`` is the handle in the main process; ``worker`` the process behind it; ``store`` finds, makes
and checks the MLflow store; ``content`` says what of a Record goes where; ``upload`` carries one journal
into one store, once; ``ledger`` remembers what was delivered; ``sync`` delivers later.
"""

from dpexp.tracking.uploader import Delivery, Uploader, how_to_deliver

__all__ = ["Delivery", "Uploader", "how_to_deliver"]
