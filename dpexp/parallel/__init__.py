"""Data parallelism, readable: PyTorch's primitives, on any device, several "devices" of one CPU included.

One step over three devices; columns are devices, time runs down::

                    batch of 10 rows on the host
                    scatter: 4        4        2          scatter_gather.py
    module ──► replicate: original  copy     copy         replicate.py
                           │         │        │
               parallel_apply: one worker thread a device parallel_apply.py
                           │         │        │
                     gather: 10 rows on the output device scatter_gather.py
                           ▼
                          loss

``data_parallel`` composes the four and ``DataParallel`` is the same as a module (data_parallel.py).
Gradients take the way back by autograd alone: through gather (a slice for each replica), through the
replicas, and through the copies into the original's parameters, where they add up.

Names, arguments and semantics are those of ``torch.nn.parallel``; where that drops rows or arguments
in silence, an error says so here.
"""

from dpexp.parallel.data_parallel import DataParallel, data_parallel
from dpexp.parallel.parallel_apply import parallel_apply
from dpexp.parallel.replicate import replicate
from dpexp.parallel.scatter_gather import gather, pieces, scatter, scatter_kwargs

__all__ = [
    "DataParallel",
    "data_parallel",
    "gather",
    "parallel_apply",
    "pieces",
    "replicate",
    "scatter",
    "scatter_kwargs",
]
