"""Traffic: the bytes that a step moves between devices; start with communication.py."""
