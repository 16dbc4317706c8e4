"""Limits: relative errors, and what of them may be rounding.

``verification`` imports it; it knows no layout. Start reading in ``compare``.
"""
