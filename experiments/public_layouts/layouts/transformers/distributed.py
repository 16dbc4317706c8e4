"""What ``from_pretrained(distributed_config=...)`` does with a model before it loads weights into it."""

from torch import nn
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig


def distributed(model, **sizes):
    """The model by its own plans, over these sizes: tp_size, ep_size, fsdp_size, dp_replicate_size."""
    inner = model if isinstance(model, PreTrainedModel) else model.model
    untie(inner)
    config, _, meshes = PreTrainedModel.prepare_distribute_model(DistributedConfig(**sizes))
    inner.maybe_distribute_model(inner, config, meshes)
    inner.tie_weights(recompute_mapping=False)
    return model


def untie(model):
    """Give a tied weight a parameter of its own: a model is laid out before its weights are tied."""
    for name in model.all_tied_weights_keys:
        module, _, parameter = name.rpartition(".")
        holder = model.get_submodule(module)
        setattr(holder, parameter, nn.Parameter(getattr(holder, parameter).detach().clone()))
