"""Data parallelism, readable: PyTorch's primitives on any device, virtual devices on one CPU included.

One step over three devices; columns are devices, time runs down::

                    batch of 10 rows on the host
                    scatter: 4        4        2          scatter_gather.py
    module ──► replicate: original  copy     copy         replicate.py
                           │         │        │
               parallel_apply: a thread per replica       parallel_apply.py
                           │         │        │
                     gather: 10 rows on the output device scatter_gather.py
                           ▼
                          loss

``DataParallel`` composes the four, and ``data_parallel`` is the same as a function (data_parallel.py): start
reading there. Autograd takes gradients the same way back: through gather (a slice for each replica),
through the replicas, and through the copies into the original's parameters, where they add up.

Names, arguments and semantics are those of ``torch.nn.parallel``; where that silently drops rows or
arguments, this package raises an error.
"""

from dpexp.parallel.data_parallel import DataParallel, data_parallel
from dpexp.parallel.parallel_apply import parallel_apply
from dpexp.parallel.replicate import replicate
from dpexp.parallel.scatter_gather import chunk_sizes, gather, scatter, scatter_kwargs

__all__ = [
    "DataParallel",
    "chunk_sizes",
    "data_parallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
    "scatter_kwargs",
]
