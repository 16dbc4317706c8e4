"""Layouts that torchtitan's trainer makes of its own models, by degrees of parallelism."""

from torchtitan_on_cpu import parallelized
from torchtitan_pipeline import pipelined
from tried import FOLDER, tried

MODELS = f"{FOLDER}/torchtitan_models.py"
MODEL = MODELS + ":{}"
OPTIONS = {"data": f"{MODELS}:tokens", "loss": f"{MODELS}:loss"}

ALL = "llama3 llama4 qwen3 qwen3_tied qwen3_moe deepseek_v3"
WITH_EXPERTS = "llama4 qwen3_moe deepseek_v3 deepseek_v3_scored_before"


def over(models, mesh="dp=2", options=None, **degrees):
    """Over ranks of these degrees of parallelism."""
    return tried(models, lambda model, mesh: parallelized(model, mesh, options, **degrees), mesh)


def scheduled(schedule):
    """A pipeline of two ranks."""
    data = f"{MODELS}:texts"
    lay_out = lambda model, mesh: pipelined(model, mesh, schedule)  # noqa: E731
    return tried("llama3_with_loss", lay_out, "pp=2", data=data, loss="", batch_size=4)


ddp = over(ALL, dp_replicate=2)
fsdp = over(ALL, dp_shard=2)
fsdp_checkpoint = over(ALL, options={"checkpoint": "full"}, dp_shard=2)
fsdp_checkpoint_selective = over(ALL, options={"checkpoint": "selective"}, dp_shard=2)
hsdp = over(ALL, "dp_replicate=2,dp_shard=2", dp_replicate=2, dp_shard=2)
tp = over(f"{ALL} deepseek_v3_scored_before", "tp=2", tp=2)
tp_loss_parallel = over(ALL, "tp=2", {"loss_parallel": True}, tp=2)
tp_fsdp = over(ALL, "dp=2,tp=2", dp_shard=2, tp=2)
ep_on_dp = over(WITH_EXPERTS, dp_shard=2, ep=2)
ep_on_tp = over(WITH_EXPERTS, "dp=2,tp=2", dp_shard=2, tp=2, ep=2)  # each rank of tp has whole experts
tp_fsdp_ep_etp = over(WITH_EXPERTS, "dp=2,tp=2", dp_shard=2, tp=2, ep=2, etp=2)  # tp inside each expert
pipeline_1f1b = scheduled("1F1B")
pipeline_interleaved_1f1b = scheduled("Interleaved1F1B")
