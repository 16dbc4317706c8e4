"""Diagnosis: which module and which gradient of a failed verification differ first, and what it looks like.

``locate`` finds them in what the failed step has kept, with the calls of which ``joined_calls`` joins the
outputs; ``patterns`` describes a difference; ``nonfinite`` explains a single device whose loss is NaN. The
rest of ``verification`` imports it; it imports ``verification`` and what lies below. Start reading in
``locate``.
"""
