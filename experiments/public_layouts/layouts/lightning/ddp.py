"""Replicas on data ranks, as Fabric's strategy sets a module up."""

import torch
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy

MESH = "dp=2"
MODELS = ("transformer",)


def parallelize(model, mesh):
    strategy = DDPStrategy(
        parallel_devices=[torch.device("cpu")] * mesh.size(), cluster_environment=TorchElasticEnvironment()
    )
    return strategy.setup_module(model)
