"""Inkling 2 of Transformers under tensor parallelism: one rank has all gates of the experts, the other all they gate."""

import copy

import torch
from torch import distributed
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig
from transformers.models.inkling2.modeling_inkling2 import Inkling2Experts

RANKS = 2


class Experts(PreTrainedModel):
    """The experts of one layer, with a style for their first weight, [gates, what they gate]."""

    def __init__(self, config, style):
        super().__init__(config)
        self.experts = Inkling2Experts(config)
        self._tp_plan = {"experts": "moe_tp_experts", "experts.down_proj": "rowwise"}
        self._tp_plan["experts.gate_up_proj"] = style


distributed.init_process_group("gloo")
config = Inkling2TextConfig(hidden_size=8, moe_intermediate_size=8, n_routed_experts=2)
how, _, meshes = PreTrainedModel.prepare_distribute_model(DistributedConfig(tp_size=2))
torch.manual_seed(0)
routed = torch.randn(4, 8), torch.tensor([[0], [1], [0], [1]]), torch.ones(4, 1)
released = config.base_model_tp_plan["layers.*.mlp.experts.gate_up_proj"]
for style in (released, "packed_colwise"):
    torch.manual_seed(0)
    single = Experts(config, style)
    for parameter in single.parameters():
        torch.nn.init.normal_(parameter)
    model = single.maybe_distribute_model(copy.deepcopy(single), how, meshes)
    wanted, found = single.experts(*routed), model.experts(*routed)
    error = ((found - wanted).norm() / wanted.norm()).item()
    print(f"{style}: outputs {error:.0e} off; " if distributed.get_rank() == 0 else "", end="")
    assert error > 0.1 if style == released else error < 1e-6
