"""Reproduce: a run again from its Record, and whether it is the same."""
