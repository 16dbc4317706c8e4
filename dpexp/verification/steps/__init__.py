"""Steps: one step of a layout and of a single device, and what it computed.

``verification`` imports it. Start reading in ``side_by_side``.
"""
