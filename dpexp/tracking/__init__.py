"""Tracking: delivers Records to MLflow. The only room that imports mlflow, and never in the main process.

``run``, ``study`` and the commands may import it; it may import ``report``, ``record`` and ``config``. Start
reading in ``process/uploader``::

    main process                          uploader process (python -m dpexp.tracking.process.uploader_process)
    ------------                          ------------------------------------------------------------
    Journal --- append, sync ---> runs/<run_id>/journal.jsonl --- read ---> Upload ---> MLflow
    Uploader --- pipe: open, read, finish --------------------> UploaderProcess
             <-- pipe: one Delivery ---------------------------

``process`` has both processes, and the server of MLflow's pages; ``delivery`` writes a journal into an MLflow
run, now or later; ``content`` maps a Record to MLflow's entities; ``store`` finds and checks the store;
``errors`` makes one line of each error of a store.
"""
