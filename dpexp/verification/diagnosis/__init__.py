"""Diagnosis: which module and which gradient of a failed verification differ first, and what it looks like.

Start reading in ``locate``.
"""
