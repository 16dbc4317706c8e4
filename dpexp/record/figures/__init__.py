"""Figures: the numbers that are computed from a Record: steps, phases, work."""
