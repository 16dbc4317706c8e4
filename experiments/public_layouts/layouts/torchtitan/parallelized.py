"""The function that torchtitan's trainer calls to lay out a model of each of its families."""

from on_cpu import config, dims
from torch import nn
from torchtitan.models.deepseek_v3.infra.parallelize import parallelize_deepseekv3
from torchtitan.models.llama3.infra.parallelize import parallelize_llama as parallelize_llama3
from torchtitan.models.llama4.infra.parallelize import parallelize_llama as parallelize_llama4
from torchtitan.models.qwen3.infra.parallelize import parallelize_qwen3

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
