"""Imported by the fork server at its start, and by nothing else: see ``forked_python.py``."""

from helpers import forked_python

forked_python.preload()
