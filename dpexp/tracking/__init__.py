"""Tracking: delivers Records to MLflow. The only room that imports mlflow, and never in the main process.

``run``, ``study`` and the scripts may import it; it may import ``report``, ``record`` and ``config``. Start
reading with ``uploader``::

    main process                          uploader process (python -m dpexp.tracking.process.uploader_process)
    ------------                          ------------------------------------------------------------
    Journal --- append, sync ---> runs/<run_id>/journal.jsonl --- read ---> Upload ---> MLflow
    Uploader --- pipe: open, read, finish --------------------> UploaderProcess
             <-- pipe: one Delivery ---------------------------

``upload`` delivers one journal to one store, ``samples`` folds its points, ``mlflow_run`` writes a Record
into an MLflow run, ``content`` maps a Record to MLflow's entities, ``store`` finds and checks the MLflow
store, ``ledger`` records what was delivered, ``sync`` delivers later, ``ui`` serves MLflow's pages.
"""
