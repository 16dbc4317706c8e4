"""FLOPs: the floating-point operations of a step; a multiplication and an addition are two.

    CountingMode            sees the operators of a step, those of backward and recomputation included
      CountFlops            adds up PyTorch's own formulas: products of matrices, convolutions, attention
      CountCollectives      what ranks send (collectives.py)

The formulas are those of ``torch.utils.flop_counter``. Its own mode would import ``torch._dynamo``, which
takes 0.7 s, counts an operator of a DTensor on every rank in full, and is silent about products for which it
has no formula: before torch 2.15, attention on a CPU; recurrent layers.
"""

import threading
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "linear", "trilinear"}
    | {"convolution", "attention", "attn", "rnn", "transformer"}
)
"""Words in the name of an operator that multiplies matrices."""


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``with mode:`` counts each operator, in the threads that have the mode."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's switch: else the first operator imports ``torch._dynamo``."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(each, "__tensor_flatten__") for each in types):
            return NotImplemented  # a DTensor: its operators on local tensors come next
        return self.counted(func, args, kwargs or {})

    def counted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The outputs of the operator ``func``, which is counted. Raises NotImplementedError here."""
        raise NotImplementedError


class CountFlops(CountingMode):  # type: ignore[no-untyped-call]
    """``total`` is that of all operators inside for which there is a formula.

    ``uncounted`` are the names of those that multiply matrices and have none: with any, it is no total.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.uncounted: set[str] = set()
        self._lock = threading.Lock()  # replicas compute in several threads

    def counted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Add the FLOPs of the operator by its formula."""
        outputs, operator = func(*args, **kwargs), getattr(func, "_overloadpacket", func)
        if operator in flop_registry:
            flops = int(flop_registry[operator](*args, **kwargs, out_val=outputs))
            with self._lock:
                self.total += flops
        elif not _PRODUCTS.isdisjoint(operator.__name__.split("_")):
            self.uncounted.add(operator.__name__)
        return outputs
