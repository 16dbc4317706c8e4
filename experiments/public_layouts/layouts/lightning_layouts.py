"""Layouts as strategies of Lightning's Fabric set a module up."""

import torch
from lightning.fabric.accelerators import CPUAccelerator
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from tried import FOLDER, tried

MODELS = f"{FOLDER}/small_transformer.py"
MODEL = MODELS + ":{}"
OPTIONS = {"loss": f"{MODELS}:loss"}


@tried("transformer")
def ddp(model, mesh):
    devices = [torch.device("cpu")] * mesh.size()
    strategy = DDPStrategy(parallel_devices=devices, cluster_environment=TorchElasticEnvironment())
    return strategy.setup_module(model)


@tried("transformer", mesh="dp=2,tp=2")
def model_parallel(model, mesh):
    """Tensor parallelism and fully_shard, over two ranks each."""
    strategy = ModelParallelStrategy(laid_out, data_parallel_size=2, tensor_parallel_size=2)
    strategy.accelerator = CPUAccelerator()
    strategy.cluster_environment = TorchElasticEnvironment()
    strategy.parallel_devices = [torch.device("cpu")] * mesh.size()
    strategy.setup_environment()
    return strategy.setup_module(model)


def laid_out(model, mesh):
    """As a user of the strategy writes it, with its mesh."""
    for layer in model.layers:
        plan = {"linear1": ColwiseParallel(), "linear2": RowwiseParallel()}
        parallelize_module(layer, mesh["tensor_parallel"], plan)
        fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])
