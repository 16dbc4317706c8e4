"""Parameters split over data ranks by fully_shard, layer by layer."""

from accelerate import FullyShardedDataParallelPlugin
from accelerated import prepared

MESH = "dp=2"
MODELS = ("transformer",)


def parallelize(model, mesh):
    layers = ["TransformerEncoderLayer"]
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=layers
    )
    return prepared(model, fsdp_plugin=plugin)
