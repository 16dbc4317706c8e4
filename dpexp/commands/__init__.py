"""Commands: thin Typer apps, which parse, call and print. Only scripts/ and tests import them.

``scripts/NAME.py`` runs the app of ``NAME``, and the installed command ``dpexp`` (``main``) has each as a
subcommand. ``app`` and ``options`` are what all are made of. ``--help`` imports neither torch nor mlflow: a
command imports what needs these when it runs. Start reading with ``run``.
"""
