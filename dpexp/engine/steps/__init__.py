"""The steps of a run: measured ones go to the journal, some are compared with those of a single device.

Imported by the engine only. Start reading with ``step_log.py``.
"""
