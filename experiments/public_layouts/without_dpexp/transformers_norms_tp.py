"""Two model types of Transformers under tensor parallelism: gradients of norms of queries and keys are each rank's part."""

import copy

import torch
from torch import distributed
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as omni
from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe as vision

RANKS = 2
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
SMALL = dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size"), 32)
SMALL |= dict.fromkeys(("num_attention_heads", "num_experts"), 4) | {"head_dim": 8, "pad_token_id": 0}
SMALL |= dict.fromkeys(("num_hidden_layers", "num_key_value_heads", "num_experts_per_tok"), 2)
SMALL |= {"rope_parameters": ROPE, "use_cache": False}
SMALL |= dict.fromkeys(("attn_implementation", "experts_implementation"), "eager")

distributed.init_process_group("gloo")
how, _, meshes = PreTrainedModel.prepare_distribute_model(DistributedConfig(tp_size=2))
for kind in (omni.Qwen3OmniMoeThinkerTextModel, vision.Qwen3VLMoeTextModel):
    torch.manual_seed(0)
    single = kind(kind.config_class(**SMALL)).double()
    model = kind.maybe_distribute_model(copy.deepcopy(single), how, meshes)
    ids = torch.randint(32, (4, 8), generator=torch.Generator().manual_seed(0))
    for each in (single, model):
        each(ids).last_hidden_state[..., ::2].sum().backward()
    worst = {True: 0.0, False: 0.0}
    for name, parameter in model.named_parameters():
        wanted, found = single.get_parameter(name).grad, parameter.grad
        found = found.full_tensor() if hasattr(found, "full_tensor") else found
        error, is_norm = (
            ((found - wanted).norm() / wanted.norm()).item(),
            "q_norm" in name or "k_norm" in name,
        )
        worst[is_norm] = max(worst[is_norm], error)
    print(f"{kind.__name__}: {worst[True]:.0%} off; " if distributed.get_rank() == 0 else "", end="")
    assert worst[True] > 0.1 > 1e-6 > worst[False]
