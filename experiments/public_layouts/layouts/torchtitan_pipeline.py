"""torchtitan's pipeline, whose schedule computes forwards and backwards of micro-batches."""

import torch
from pytorch_steps import Scheduled, WholeStep
from torch import distributed, nn
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan_models import loss
from torchtitan_on_cpu import config, dims


class Pipelined(Scheduled):
    """The stages of this rank, with the names that their modules have in the model."""

    def __init__(self, model, mesh, schedule):
        super().__init__()
        options = config()
        options.training.local_batch_size, options.parallelism.pipeline_parallel_degree = 4, mesh.size()
        options.parallelism.pipeline_parallel_schedule = schedule
        device, stay = torch.device("cpu"), lambda part, *_: part
        made = pipeline_llm(
            model, dims(mesh.size(), pp=mesh.size()), options, device, model.model_args, stay, loss
        )
        self.run, parts, self.has_first, self.has_last = made
        self.register_buffer("freqs_cis", parts[0].freqs_cis, persistent=False)
        self.layers = nn.ModuleDict({name: layer for part in parts for name, layer in part.layers.items()})
        for name in ("tok_embeddings", "norm", "output"):
            for part in parts:
                if getattr(part, name) is not None:
                    setattr(self, name, getattr(part, name))

    def schedule(self, tokens, targets):
        losses = []
        taken = {"target": targets, "losses": losses} if self.has_last else {}
        self.run.step(*((tokens,) if self.has_first else ()), **taken)
        total = (
            torch.stack(losses).sum().detach() if losses else torch.zeros((), dtype=torch.get_default_dtype())
        )
        total = total.to(next(self.parameters()).dtype)
        distributed.broadcast(total, distributed.get_world_size() - 1)
        return total


def pipelined(model, mesh, schedule):
    """The layout, whose step is that of the schedule."""
    return WholeStep(Pipelined(model, mesh, schedule))
