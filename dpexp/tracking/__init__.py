"""Tracking: delivers Records to MLflow. The only package that imports mlflow, and never in the main process.

``run``, ``study`` and the commands may import it; it may import ``report``, ``record`` and ``config``. Start
reading in ``deliver``::

    main process                                    follower (python -m dpexp.tracking.follower)
    ------------                                    --------------------------------------------
    Journal --- append, sync ---> journal.jsonl --- read, and the file's lock ---> deliver ---> MLflow
    follow: start, wait for its exit                                               delivery.json (ledger)

``sync`` delivers later, by the same ``deliver``. ``points`` reads a journal's metrics, ``content`` maps a
Record to what MLflow has; ``store`` finds and checks the store, ``client`` calls it; ``ui`` serves its pages.
"""
