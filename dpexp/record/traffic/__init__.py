"""Traffic: the bytes that a step moves between devices, computed from a Record.

``move`` is what one device sends another, ``copies`` has those inside one process, ``communication`` all of
them with those of ranks. ``RecordView`` and ``report`` import it; it imports ``record`` and ``config``. Start
reading in ``communication``.
"""
