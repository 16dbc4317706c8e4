"""Store: the MLflow store that runs are delivered to, embedded or a server.

``store`` finds it, probes it, and says what is wrong with it; ``sqlite_file`` checks and creates an embedded
one so that no crash breaks it. The rest of ``tracking`` and the commands import it; it may import
``content``, ``record`` and ``config``. Start reading in ``store``.
"""
