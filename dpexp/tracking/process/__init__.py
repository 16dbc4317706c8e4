"""Process: the processes beside a run: the uploader, and the server of MLflow's pages.

``uploader`` is the main process's handle on ``uploader_process``, with a pipe between them;
``ui`` serves MLflow's pages. ``run`` imports ``uploader``, the command ``ui``
and ``delivery`` what they start; it may import the rest of ``tracking`` and ``record``. Start reading in
``uploader``.
"""
