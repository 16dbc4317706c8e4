"""Store: the MLflow store that runs are delivered to, embedded or a server.

``store`` finds it, probes it, and says what is wrong with it; ``sqlite_file`` checks and creates an embedded
one so that no crash breaks it, and ``points`` writes points into it; ``whole_answers`` bounds each of its
answers, ``patience`` all of them, and ``valid_answers`` knows what is the answer of a server.
The rest of ``tracking`` and the commands import it; it may import ``content``, ``record`` and ``config``.
Start reading in ``store``.
"""
