"""Command line: what all commands are made of.

``app`` is the Typer app of a script, with the exit code of each error; ``config_options`` makes the options
of a command from the config classes; ``help_panels`` orders what ``--help`` shows. The commands and scripts/
import it; it imports ``config`` and ``record``, and torch never. Start reading in ``app``.
"""
