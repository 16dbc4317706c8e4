"""Command line: what all commands are made of: the app of a script, options from config classes, help panels.

The commands and scripts/ import it. Start reading in ``app``.
"""
