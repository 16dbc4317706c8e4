"""Gradients are views of the buckets that are reduced; buckets are small."""

from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    return DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
