"""Qwen3 of Transformers under tensor parallelism: two backwards before a step add the first one's norms up twice."""

import copy

import torch
from torch import distributed
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.distributed import DistributedConfig

RANKS = 2

distributed.init_process_group("gloo")
small = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 32) | {"head_dim": 8}
small |= dict.fromkeys(("num_hidden_layers", "num_key_value_heads"), 2) | {"num_attention_heads": 4}
config = Qwen3Config(use_cache=False, attn_implementation="eager", **small)
torch.manual_seed(0)
single = Qwen3ForCausalLM(config).double()
how, _, meshes = PreTrainedModel.prepare_distribute_model(DistributedConfig(tp_size=2))
model = Qwen3ForCausalLM.maybe_distribute_model(copy.deepcopy(single), how, meshes)


def errors():
    found = {True: 0.0, False: 0.0}
    for name, parameter in model.named_parameters():
        wanted, grad = single.get_parameter(name).grad, parameter.grad
        grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
        kind = "q_norm" in name or "k_norm" in name
        found[kind] = max(found[kind], ((grad - wanted).norm() / wanted.norm()).item())
    return found[True], found[False]


for seed in (0, 1):
    ids = torch.randint(32, (4, 8), generator=torch.Generator().manual_seed(seed))
    for each in (single, model):
        each(ids, labels=ids).loss.backward()
    norms, others = errors()
    print(f"backward {seed + 1}: {norms:.0e}; " if distributed.get_rank() == 0 else "", end="")
    assert norms > 0.1 > 1e-12 > others if seed else max(norms, others) < 1e-12
