"""Data: seeded batches of samples, the sources of these in ``sources``, and the loss of a model on them.

``registry`` finds what ``--data`` and ``--loss`` name, without importing torch before a source is made. The
rooms above import this one, which imports ``config``, ``tensors`` and ``distributed``. Start reading in
``batch`` and ``dataset``, then in ``base`` (what a source is).
"""
