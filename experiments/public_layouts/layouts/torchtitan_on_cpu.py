"""What torchtitan needs to run without an accelerator, and how its trainer lays a model out.

What is changed is where things are computed, not what.
"""

from functools import partial

import torch
from torch import nn
from torchtitan.config import TORCH_DTYPE_MAP, JobConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.models.deepseek_v3.infra.parallelize import parallelize_deepseekv3
from torchtitan.models.llama3.infra.parallelize import parallelize_llama as parallelize_llama3
from torchtitan.models.llama4.infra.parallelize import parallelize_llama as parallelize_llama4
from torchtitan.models.moe import utils
from torchtitan.models.qwen3.infra.parallelize import parallelize_qwen3

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


FAMILIES = {
    "llama3": parallelize_llama3,
    "llama4": parallelize_llama4,
    "qwen3": parallelize_qwen3,
    "deepseek_v3": parallelize_deepseekv3,
}


def parallelized(model, mesh, options=None, **degrees):
    """The model, laid out with these degrees over the ranks of the mesh.

    parallelize_qwen3 gets two weights, as its trainer gives it, and ties them when it has laid them out.
    """
    if getattr(model.model_args, "enable_weight_tying", False):
        model.output.weight = nn.Parameter(model.output.weight.detach().clone())
    family = type(model).__module__.split(".")[2]
    return FAMILIES[family](model, dims(mesh.size(), **degrees), config(**options or {}))
