"""Layouts that Accelerate's ``prepare`` makes on CPUs, in the process group that is there."""

from accelerate import Accelerator, FullyShardedDataParallelPlugin
from tried import FOLDER, tried

MODELS = f"{FOLDER}/small_transformer.py"
MODEL = MODELS + ":{}"
OPTIONS = {"loss": f"{MODELS}:loss"}


def prepared(accumulate=1, plugin=lambda: None):
    """The prepared model."""

    def lay_out(model, mesh):
        return Accelerator(cpu=True, fsdp_plugin=plugin()).prepare(model)

    return tried("transformer", lay_out, accumulate=accumulate, steps=accumulate)


def layer_by_layer():
    """fully_shard of each layer."""
    layers = ["TransformerEncoderLayer"]
    return FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=layers
    )


ddp = prepared()
ddp_accumulated = prepared(accumulate=2)  # gradients of two micro-batches add up before a step
fsdp = prepared(plugin=layer_by_layer)
