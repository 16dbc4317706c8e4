"""PyTorch's own layouts: DDP with its hooks, ZeRO, fully_shard, tensor parallelism, pipelines."""

from functools import partial

import torch
from pytorch_steps import accumulated, pipelined
from torch import distributed
from torch.distributed import pipelining
from torch.distributed._composable.replicate import replicate as composable_replicate
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel as of_contexts
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision
from tried import FOLDER, tried

MODEL = FOLDER + "/pytorch_models.py:{}"
OPTIONS = {}
HERE = f"{FOLDER}/pytorch_layouts.py"

# --- DistributedDataParallel ---------------------------------------------------------------------


def ddp_with(**options):
    """DDP with these options."""
    return tried("net", lambda model, mesh: DistributedDataParallel(model, **options))


def hooked(hook, state=lambda: None):
    """DDP that reduces its gradients by a hook; ``state()`` is what the hook keeps."""

    def lay_out(model, mesh):
        kept, model = state(), DistributedDataParallel(model)
        model.register_comm_hook(kept, hook)
        return model

    return tried("net", lay_out)


def local_sgd(start):
    """The state of post-local SGD whose local steps begin at this one."""
    alone = distributed.new_subgroups(group_size=1)[0] if start == 0 else None
    return post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=start)


ddp = tried("net text", lambda model, mesh: DistributedDataParallel(model))
replicate = tried("net text", lambda model, mesh: composable_replicate(model, device_mesh=mesh))
ddp_bucket_view = ddp_with(gradient_as_bucket_view=True, bucket_cap_mb=0.001)  # small buckets
ddp_find_unused = ddp_with(find_unused_parameters=True)
ddp_static_graph = ddp_with(static_graph=True)
ddp_mixed_precision = ddp_with(mixed_precision=_MixedPrecision(torch.bfloat16, torch.bfloat16))
ddp_allreduce = hooked(default_hooks.allreduce_hook)
ddp_bf16_compress = hooked(default_hooks.bf16_compress_hook)
ddp_fp16_compress = hooked(default_hooks.fp16_compress_hook)
ddp_bf16_wrapper = hooked(default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook))
ddp_fp16_wrapper = hooked(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
ddp_noop = hooked(debugging_hooks.noop_hook)
ddp_quantization_per_channel = hooked(quantization_hooks.quantization_perchannel_hook)
ddp_quantization_per_tensor = hooked(quantization_hooks.quantization_pertensor_hook)
ddp_post_local_sgd = hooked(post_localSGD_hook.post_localSGD_hook, partial(local_sgd, 0))
ddp_post_local_sgd_begin = hooked(post_localSGD_hook.post_localSGD_hook, partial(local_sgd, 1000))
ddp_powersgd = hooked(  # products of matrices of rank 1, from the third step on
    powerSGD_hook.powerSGD_hook,
    lambda: powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1),
)
ddp_powersgd_batched = hooked(
    powerSGD_hook.batched_powerSGD_hook, lambda: powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
)


@tried("net")
def ddp_join(model, mesh):
    model = DistributedDataParallel(model)
    model.join().__enter__()  # as around a training loop; ranks have equally many batches here
    return model


# --- ZeroRedundancyOptimizer ---------------------------------------------------------------------


@tried("net")
def ddp_zero_hook(model, mesh):
    """Updates while DDP still reduces gradients."""
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.01)
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer))
    return model


def replicated(model, mesh):
    """DDP with a mark on the parameters, by which ``updated`` chooses the optimizer."""
    for parameter in model.parameters():
        parameter.is_laid_out = True
    return DistributedDataParallel(model)


def updated(parameters, lr, kind="SGD", bucket_view=False):
    """Each rank updates some parameters and sends them; of a single device, to compare with, it is plain."""
    parameters, kind = list(parameters), getattr(torch.optim, kind)
    if not any(hasattr(parameter, "is_laid_out") for parameter in parameters):
        return kind(parameters, lr=lr)
    return ZeroRedundancyOptimizer(parameters, kind, lr=lr, parameters_as_bucket_view=bucket_view)


def zero_with(options):
    """ZeRO with these options of ``updated``."""
    return tried("net", partial(replicated), optimizer=f"{HERE}:updated:{options}")


zero = zero_with("kind=SGD")
zero_adam = zero_with("kind=Adam")
zero_bucket_view = zero_with("bucket_view=true")

# --- fully_shard ---------------------------------------------------------------------------------


def sharded(parts="", mesh="dp=2", models="net", change=lambda model: None, **options):
    """fully_shard of these parts and of the whole; ``change(model)`` sets what it offers afterwards."""

    def lay_out(model, mesh):
        for part in parts.split():
            fully_shard(model.get_submodule(part), mesh=mesh, **options)
        change(fully_shard(model, mesh=mesh, **options))
        return model

    return tried(models, lay_out, mesh=mesh)


def prefetch(model):
    """The next part's parameters are gathered before they are needed, in forward and backward."""
    model.up.set_modules_to_forward_prefetch([model.down])
    model.down.set_modules_to_backward_prefetch([model.up])


def sum_reduction(model):
    """Gradients are summed and divided afterwards, never averaged while they are reduced."""
    model.set_force_sum_reduction_for_comms(True)
    model.set_gradient_divide_factor(2.0)


def divide_twice_as_large(model):
    """Gradients are twice as large, as of two data ranks, and a factor divides them by two."""
    model.set_gradient_divide_factor(2.0)
    model.register_forward_hook(twice)


def twice(model, inputs, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: 2 * gradient)


fsdp_root = sharded(models="net text")
fsdp_default = sharded("up down")
fsdp_keep = sharded("up", reshard_after_forward=False)
fsdp_reshard = sharded("up", reshard_after_forward=True)
fsdp_reshard_to_two = sharded("up", mesh="dp=4", reshard_after_forward=2)
fsdp_hsdp = sharded("up", mesh="dp_replicate=2,dp_shard=2")
fsdp_one_rank = sharded("up", mesh="dp=1")
fsdp_prefetch = sharded("up down", change=prefetch)
fsdp_offload = sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
fsdp_shard_dim_1 = sharded(shard_placement_fn=lambda weight: Shard(weight.dim() - 1))
fsdp_bf16 = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
fsdp_reduce_fp16 = sharded(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
fsdp_divide_factor = sharded(change=lambda model: model.set_gradient_divide_factor(2.0))
fsdp_sum_reduction = sharded(change=sum_reduction)
fsdp_one_rank_divide_factor = sharded(mesh="dp=1", change=divide_twice_as_large)


def accumulating(before, mesh="dp=2"):
    """Two micro-batches; ``before(model, is_last)`` says what is reduced after which."""

    def lay_out(model, mesh):
        fully_shard(model, mesh=mesh)
        return accumulated(model, partial(before, model))

    data = MODEL.format("pairs:samples=16")
    return tried("chain", lay_out, mesh=mesh, data=data, batch_size=8)


def keep_gathered(model, is_last):
    """Parameters stay gathered from the first backward to the second forward."""
    model.set_reshard_after_backward(is_last)
    model.set_is_last_backward(is_last)


fsdp_accumulate = accumulating(lambda model, is_last: model.set_requires_gradient_sync(is_last))
fsdp_accumulate_keep = accumulating(keep_gathered)
fsdp_accumulate_all_reduce = accumulating(  # the replicas are averaged after the second alone
    lambda model, is_last: model.set_requires_all_reduce(is_last), mesh="dp_replicate=2,dp_shard=2"
)

# --- tensor and context parallelism --------------------------------------------------------------


def planned(models, plan, before=lambda: None, **options):
    """parallelize_module by a plan."""

    def lay_out(model, mesh):
        before()
        return parallelize_module(model, mesh, plan)

    return tried(models, lay_out, mesh="tp=2", **options)


ROWS = {"input_layouts": Replicate(), "output_layouts": Shard(1)}
LOGITS = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
FEED = {
    "table": RowwiseParallel(**ROWS),
    "norm": SequenceParallel(),
    "ffn.0": ColwiseParallel(),
    "head": LOGITS,
}
FROM_TOKENS = ColwiseParallel(input_layouts=Shard(1))
TO_TOKENS = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)

tp_linear = planned("net text", {"up": ColwiseParallel(), "down": RowwiseParallel()})
tp_head = planned("net text", {"head": ColwiseParallel(output_layouts=Replicate())})
tp_attention = planned(
    "text", {**dict.fromkeys(("query", "key", "value"), ColwiseParallel()), "out": RowwiseParallel()}
)
tp_embedding_columns = planned("text", {"table": ColwiseParallel(output_layouts=Replicate())})
tp_embedding_rows = planned("text", {"table": RowwiseParallel(input_layouts=Replicate())})
tp_loss_parallel = planned(  # logits stay split by the vocabulary, and the loss and its backward too
    "text_with_loss",
    {"head": ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False)},
    before=lambda: loss_parallel().__enter__(),  # as around forward and backward of a training loop
    data=MODEL.format("texts"),
)
tp_prepare_input = planned(  # tokens are split over the ranks up to a module that needs all of them
    "feed",
    FEED
    | {
        "ffn": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "ffn.2": RowwiseParallel(output_layouts=Shard(1)),
    },
)
tp_prepare_input_output = planned(  # partial sums are added up and split after the module
    "feed",
    FEED
    | {
        "ffn": PrepareModuleInputOutput(
            input_layouts=(Shard(1),),
            desired_input_layouts=(Replicate(),),
            output_layouts=(Partial(),),
            desired_output_layouts=(Shard(1),),
        ),
        "ffn.2": RowwiseParallel(output_layouts=Partial()),
    },
)
tp_sequence = planned(  # a norm whose tokens are split over the ranks
    "text",
    {
        "table": RowwiseParallel(**ROWS, use_local_output=False),
        "norm": SequenceParallel(use_local_output=False),
        **dict.fromkeys(("query", "key", "value", "up"), FROM_TOKENS),
        **dict.fromkeys(("out", "down"), TO_TOKENS),
        "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "": PrepareModuleOutput(output_layouts=Shard(-1), desired_output_layouts=Replicate()),
    },
)


@tried("net", mesh="dp=2,tp=2")
def tp_fsdp(model, mesh):
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


@tried("text", mesh="cp=2")
def context_parallel(model, mesh):
    """Each rank has a part of every sequence, and keys and values go round."""
    whole = model.forward

    def forward(tokens):
        tokens = tokens.clone()
        with of_contexts(mesh, buffers=[tokens], buffer_seq_dims=[1]):
            [logits] = context_parallel_unshard(mesh, [whole(tokens)], [1])
        return logits

    model.forward = forward
    return model


# --- pipelines -----------------------------------------------------------------------------------


def scheduled(schedule, *places):
    """A pipeline of two ranks; ``places`` are the numbers of the stages of each."""
    return tried(
        "chain",
        lambda model, mesh: pipelined(model, mesh, schedule, places),
        mesh="pp=2",
        data=MODEL.format("pairs"),
        batch_size=4,
    )


pipeline_gpipe = scheduled(pipelining.ScheduleGPipe, (0,), (1,))
pipeline_1f1b = scheduled(pipelining.Schedule1F1B, (0,), (1,))
pipeline_interleaved_1f1b = scheduled(pipelining.ScheduleInterleaved1F1B, (0, 2), (1, 3))
pipeline_looped_bfs = scheduled(pipelining.ScheduleLoopedBFS, (0, 2), (1, 3))
pipeline_zero_bubble = scheduled(pipelining.ScheduleInterleavedZeroBubble, (0, 2), (1, 3))
pipeline_zbv = scheduled(pipelining.ScheduleZBVZeroBubble, (0, 3), (1, 2))
pipeline_dual_pipe_v = scheduled(pipelining.ScheduleDualPipeV, (0, 3), (1, 2))
