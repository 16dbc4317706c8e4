"""Apertus of Transformers under tensor parallelism: the gradients of its activation's parameters are each rank's part."""

import copy

import torch
from torch import distributed
from transformers import ApertusConfig, ApertusForCausalLM, PreTrainedModel
from transformers.distributed import DistributedConfig

RANKS = 2

distributed.init_process_group("gloo")
config = ApertusConfig(
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_key_value_heads"), 2),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1),
    num_attention_heads=4,
    use_cache=False,
    attn_implementation="eager",
)
torch.manual_seed(0)
single = ApertusForCausalLM(config).double()
how, _, meshes = PreTrainedModel.prepare_distribute_model(DistributedConfig(tp_size=2))
model = ApertusForCausalLM.maybe_distribute_model(copy.deepcopy(single), how, meshes)
ids = torch.randint(32, (4, 8), generator=torch.Generator().manual_seed(0))
losses = [each(ids, labels=ids).loss for each in (single, model)]
for loss in losses:
    loss.backward()
assert torch.allclose(*losses, rtol=1e-14)
for name, parameter in model.named_parameters():
    wanted, found = single.get_parameter(name).grad, parameter.grad
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    error = ((found - wanted).norm() / wanted.norm()).item()
    assert error > 0.1 if "alpha" in name else error < 1e-12, (name, error)
    if "alpha" in name:
        distributed.all_reduce(found)
        assert torch.allclose(found, wanted, rtol=1e-10)
        print(f"{name}: {error:.0%} off; " if distributed.get_rank() == 0 else "", end="")
distributed.destroy_process_group()
