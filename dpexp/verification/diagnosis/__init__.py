"""Diagnosis: which module and which gradient of a failed verification differ first, and what it looks like.

``locate`` puts together what ``modules`` and ``gradients`` find in what the failed step has kept;
``patterns`` describes a difference. The rest of ``verification`` imports it; it imports ``verification`` and
what lies below. Start reading in ``locate``.
"""
