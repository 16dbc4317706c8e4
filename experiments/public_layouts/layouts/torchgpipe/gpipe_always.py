"""torchgpipe over two devices, three micro-batches; activations are computed again: always."""

from torchgpipe import GPipe

MESH = ""
MODELS = ("layers",)
OPTIONS = {"devices": "auto", "virtual": 2}


def parallelize(model, devices):
    pipeline = GPipe(model, balance=[3, 3], devices=["cpu", "cpu"], chunks=3, checkpoint="always")
    model.forward = pipeline.forward
    return model
