"""Modes: in which mode a model is compared whose results depend on the split of rows, or on random numbers.

``verification`` imports it. Start reading in ``mode``.
"""
