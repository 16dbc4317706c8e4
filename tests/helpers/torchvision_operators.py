"""torchvision beside a CPU build of torch: its package on the index needs CUDA, and then its import fails.

The models use none of its operators, but the import wants to know them. Only ``test_standard_models`` needs
this: torchvision is not among the packages of the tests, as Transformers cannot be imported beside it either.
"""

import importlib.util
from pathlib import Path

import torch

OPERATORS = ("nms", "qnms")
_defined: list[torch.library.Library] = []
"""Kept, since the operators go with it."""


def define_missing() -> None:
    """Define the operators, unless torchvision is not installed or its library has them.

    Once per process: a file of tests that is the file of a user, too, is imported twice.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _defined:
        return
    try:
        for library in Path(found.origin).parent.glob("_C.*so"):
            torch.ops.load_library(library)
    except OSError:
        _defined.append(torch.library.Library("torchvision", "DEF"))
        for name in OPERATORS:
            _defined[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
