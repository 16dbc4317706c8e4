"""What torchtitan needs to run without an accelerator: it changes where things are computed, not what."""

from functools import partial

import torch
from torchtitan.config import TORCH_DTYPE_MAP, JobConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.models.moe import utils

AS_THE_MODEL = "as the model"
histc = torch.histc


def lets_run_on_cpu():
    """The mesh is of CPUs; experts' tokens are counted and ordered without CUDA kernels."""
    parallel_dims.device_type = "cpu"
    TORCH_DTYPE_MAP[AS_THE_MODEL] = None
    if not isinstance(utils.generate_permute_indices, partial):
        utils.generate_permute_indices = partial(utils.generate_permute_indices, use_cpu=True)
    torch.histc = count


def count(values, bins, **limits):
    """``torch.histc`` has no integers on a CPU."""
    return histc(values.double(), bins, **limits).to(values.dtype)


def dims(mesh_size, **degrees):
    """torchtitan's own meshes of these degrees of parallelism."""
    one = dict.fromkeys(("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "etp"), 1)
    return ParallelDims(**one | degrees, world_size=mesh_size)


def config(loss_parallel=False, checkpoint="none", reshard="default"):
    """The options of a training that are not degrees of parallelism."""
    found = JobConfig()
    found.training.seq_len = 8
    found.training.mixed_precision_param = found.training.mixed_precision_reduce = AS_THE_MODEL
    found.parallelism.disable_loss_parallel = not loss_parallel
    found.parallelism.fsdp_reshard_after_forward = reshard
    found.activation_checkpoint.mode = checkpoint
    return found
