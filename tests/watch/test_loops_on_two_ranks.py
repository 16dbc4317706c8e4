"""Loops of two gloo ranks that are right, wrong for a named cause, or not comparable."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from helpers.in_ranks import in_ranks
from loops import (
    MLP,
    Claims,
    Ended,
    LanguageModel,
    alike,
    clip,
    cross_entropy,
    loop,
    mse,
    normalized,
    numbers,
    rank,
    seeded,
    sgd,
    tokens,
    train,
    watch,
)
from torch import distributed, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from dpexp.config.errors import VerificationError
from dpexp.distributed.group import ProcessGroup

claims = Claims()
right, wrong, not_comparable = claims.right, claims.wrong, claims.not_comparable


def verdict(_: ProcessGroup, name: str) -> list[dict[str, Any]]:
    """What each rank calls."""
    return claims[name].json()


@pytest.mark.parametrize("name", claims)
def test_the_verdict_of(name: str) -> None:
    (by_rank,) = in_ranks(2, __file__, f"verdict:{name}").values()
    claims[name].check([Ended(**each) for of_rank in by_rank for each in of_rank])


def mean_over_ranks(model: nn.Module, divisor: int = 2, skips: str = "-") -> Callable[[], None]:
    """What a user writes instead of DistributedDataParallel."""

    def act() -> None:
        for name, each in model.named_parameters():
            if not name.startswith(skips):
                distributed.all_reduce(each.grad)
                each.grad /= divisor

    return act


def by_hand(make: Callable[[], nn.Module] = MLP, **options: Any) -> Any:
    """A loop that synchronizes gradients itself."""
    training = {key: options.pop(key) for key in ("micro",) if key in options}
    run = watch(model := seeded(make), mse)
    return train(run, model, sgd(model), before_step=mean_over_ranks(model, **options), **training)


# --- DDP ---

right(
    ddp=lambda: loop(seeded(), layout=DistributedDataParallel, micro=2),
    ddp_with_a_static_graph=lambda: loop(
        seeded(), layout=partial(DistributedDataParallel, static_graph=True, gradient_as_bucket_view=True)
    ),
    ddp_clipped=lambda: loop(seeded(), layout=DistributedDataParallel, micro=2, clip_norm=0.1, clips=0.1),
    ddp_with_batch_norm=lambda: loop(seeded(normalized), layout=DistributedDataParallel, micro=2),
    ddp_compiled=lambda: loop(
        seeded(), layout=lambda model: torch.compile(DistributedDataParallel(model), backend="aot_eager")
    ),
    ddp_of_models_with_other_seeds=lambda: loop(seeded(seed=rank()), layout=DistributedDataParallel),
    replicate_in_place=lambda: loop(seeded(), layout=lambda model: replicate(model) or model, micro=2),
    gradients_averaged_by_hand=lambda: by_hand(micro=2),
)
right("weights", ddp_without_a_loss=lambda: loop(seeded(), loss=None, layout=DistributedDataParallel))
right("equal rows", ranks_with_equal_rows=lambda: loop(seeded(), layout=DistributedDataParallel, batch=alike))
wrong(
    "the loss of each of 4 micro-batches is not divided by 4",
    ddp_not_divided=lambda: loop(seeded(), layout=DistributedDataParallel, micro=4, share=lambda number: 1.0),
)
wrong(
    "ranks of unequal rows are averaged as if equal",
    ddp_with_unequal_rows_on_ranks=lambda: loop(
        seeded(),
        layout=DistributedDataParallel,
        batch=lambda step, number: numbers(step, number, 4 + 3 * rank()),
    ),
)
wrong(
    "ranks of unequal labels", "averaged as if equal",
    ddp_with_unequal_labels_on_ranks=lambda: loop(
        seeded(LanguageModel),
        loss=cross_entropy,
        layout=DistributedDataParallel,
        batch=lambda step, number: tokens(step, number, 1 + 3 * rank()),
    ),
)  # fmt: skip
wrong(
    "micro-batches is not divided by 2",
    equal_rows_not_divided=lambda: loop(
        seeded(), layout=DistributedDataParallel, micro=2, batch=alike, share=lambda number: 1.0
    ),
)
wrong("a sum over 2 ranks instead of the mean", gradients_summed_by_hand=lambda: by_hand(micro=3, divisor=1))


@wrong("differs between ranks before the step", "were not seeded alike")
def models_with_other_seeds_averaged_by_hand() -> Any:
    run = watch(model := seeded(seed=rank()), mse)
    return train(run, model, sgd(model), before_step=mean_over_ranks(model))


@wrong("differs between ranks after the step", "an optimizer of another state")
def a_learning_rate_of_each_rank() -> Any:
    run = watch(model := seeded(), mse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + 0.1 * rank())
    return train(run, DistributedDataParallel(model), optimizer)


class UsesMoreOnRank0(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.extra, self.uses_more = nn.Linear(8, 4), rank() == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (self.extra(x) if self.uses_more else 0)


wrong(
    "2 of 6 parameters", "'extra.bias'", "rank 0 has the gradients of its own rows only",
    a_part_of_one_rank_not_synchronized=lambda: by_hand(UsesMoreOnRank0, skips="extra"),
)  # fmt: skip


def no_sync(is_left_on: Callable[[int], bool]) -> Any:
    run = watch(model := seeded(), mse)
    parallel = DistributedDataParallel(model)

    def during(number: int) -> AbstractContextManager[Any]:
        return parallel.no_sync() if is_left_on(number) else nullcontext()

    return train(run, parallel, sgd(model), micro=4, during=during)


right(no_sync_until_the_last_pass=lambda: no_sync(lambda number: number < 3))
wrong(
    "no_sync was left on the last 3 of 4 backward passes, so ranks differ",
    no_sync_off_by_one=lambda: no_sync(lambda number: number > 0),
)
wrong(
    "rank 0 has the gradients of its own rows only", "no_sync",
    no_sync_on_every_pass=lambda: no_sync(lambda number: True),
)  # fmt: skip


@wrong("own rows only", "without its wrapper")
def the_module_inside_ddp_called() -> Any:
    run = watch(model := seeded(), mse)
    return train(run, DistributedDataParallel(model).module, sgd(model))


@wrong("'fc1.bias'", "rank 0 has the gradients of its own rows only")
def a_parameter_that_ddp_ignores() -> Any:
    model = seeded()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["fc1.bias"])
    return loop(model, layout=DistributedDataParallel)


@wrong("own rows only")
def ddp_cast_to_bfloat16_afterwards() -> Any:
    return loop(
        seeded(),
        layout=lambda model: DistributedDataParallel(model).bfloat16(),
        batch=lambda step, number: [each.bfloat16() for each in numbers(step, number)],
    )


@wrong("own rows only")
def parameters_averaged_and_not_gradients() -> Any:
    def average(parameter: nn.Parameter) -> None:
        distributed.all_reduce(parameter.data)
        parameter.data /= 2

    for each in (model := seeded()).parameters():
        each.register_post_accumulate_grad_hook(average)
    return loop(model)


@wrong("clipped by each rank's own norm", "so ranks differ")
def clipped_by_a_norm_of_each_rank() -> Any:
    run = watch(model := seeded(), mse, clip_norm=0.05)
    return train(
        run, DistributedDataParallel(model), sgd(model), before_step=clip(model, 0.05 + 0.02 * rank())
    )


def mean_by_all_reduce(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = mse(outputs, targets)
    distributed.all_reduce(loss)
    return loss / distributed.get_world_size()


def gathered(some: torch.Tensor) -> torch.Tensor:
    """The rows of all ranks; the gradient of the other ranks' is lost."""
    if distributed.get_world_size() == 1:
        return some
    parts = [torch.empty_like(some) for _ in range(2)]
    distributed.all_gather(parts, some.detach())
    parts[rank()] = some
    return torch.cat(parts)


def contrastive_over_ranks(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    some, others = gathered(some), gathered(others)
    return functional.cross_entropy(some @ others.T, torch.arange(len(some)))


wrong(
    "an all_reduce without a backward",
    an_all_reduce_in_the_loss=lambda: loop(seeded(), loss=mean_by_all_reduce, layout=DistributedDataParallel),
    an_all_gather_in_the_loss=lambda: loop(
        seeded(), loss=contrastive_over_ranks, layout=DistributedDataParallel
    ),
)


@right()
def ddp_with_uneven_rows_weighted() -> Any:
    sizes = [[4, 4, 2], [4, 4, 3]]
    return loop(
        seeded(),
        layout=DistributedDataParallel,
        micro=3,
        batch=lambda step, number: numbers(step, number, sizes[rank()][number]),
        share=lambda number: 2 * sizes[rank()][number] / 21,
    )


@right()
def ddp_with_dropout_and_other_seeds_on_ranks() -> Any:
    run = watch(model := seeded(partial(LanguageModel, is_tied=True, dropout=0.3)), cross_entropy)
    parallel = DistributedDataParallel(model)
    torch.manual_seed(5 + rank())
    return train(run, parallel, sgd(model), batch=tokens, micro=2)


@right()
def ddp_with_autocast_and_grad_scaler() -> Any:
    run = watch(model := seeded(), mse, clip_norm=0.1)
    parallel, scaler = DistributedDataParallel(model), torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(3):
        optimizer.zero_grad()
        inputs, targets = numbers(step, 0)
        with torch.autocast("cpu", torch.bfloat16):
            loss = run.loss(parallel(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(model, 0.1)()
        scaler.step(optimizer)
        scaler.update()
    return run


@right("update was not compared")
def the_update_of_a_zero_redundancy_optimizer() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of torch.jit.script

    run = watch(model := seeded(), mse)
    parallel = DistributedDataParallel(model)
    return train(run, parallel, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW))


@right()
def two_watched_models_in_one_backward() -> tuple[Any, ...]:
    first, second = seeded(), seeded(partial(MLP, 4, 8, 4), 1)
    runs = watch(first, mse), watch(second)
    parallel = nn.Sequential(DistributedDataParallel(first), DistributedDataParallel(second))
    of_second = sgd(second)
    train(runs[0], parallel, sgd(first), before_step=lambda: (of_second.step(), of_second.zero_grad()))
    return runs


# --- FSDP2 ---


def nested(model: nn.Module, **options: Any) -> nn.Module:
    for part in model.children():
        if list(part.parameters()):
            fully_shard(part, **options)
    return fully_shard(model, **options)


bfloat16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
right(
    fsdp=lambda: loop(seeded(), layout=fully_shard),
    fsdp_nested=lambda: loop(seeded(), layout=nested, micro=2),
    fsdp_clipped=lambda: loop(seeded(), layout=nested, clip_norm=0.05, clips=0.05),
    fsdp_with_muon=lambda: loop(
        seeded(lambda: nn.Sequential(*[nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False)])),
        layout=nested,
        optimizer=torch.optim.Muon,
    ),
    fsdp_with_batch_norm_and_dropout=lambda: loop(
        seeded(lambda: nn.Sequential(normalized(), nn.Dropout(0.2))), layout=fully_shard, micro=2
    ),
    fsdp_in_bfloat16=lambda: loop(
        seeded(),
        loss=lambda outputs, targets: mse(outputs.float(), targets),
        layout=partial(nested, mp_policy=bfloat16),
    ),
)
right("rank 0", fsdp_of_models_with_other_seeds=lambda: loop(seeded(seed=rank()), layout=fully_shard))
not_comparable(
    "FSDP1",
    fsdp1=lambda: loop(
        seeded(),
        layout=partial(FullyShardedDataParallel, use_orig_params=True, device_id=torch.device("cpu")),
    ),
)


def without_sync_but(last: int) -> Any:
    run = watch(model := seeded(), mse)
    nested(model)

    def during(number: int) -> AbstractContextManager[Any]:
        model.set_requires_gradient_sync(number == last)
        return nullcontext()

    return train(run, model, sgd(model), micro=3, during=during)


right(fsdp_synchronized_on_the_last_pass=lambda: without_sync_but(2))
wrong("the last of 3 backward passes", fsdp_synchronized_too_early=lambda: without_sync_but(1))


@wrong("clipped by each rank's own norm")
def fsdp_clipped_by_the_norm_of_shards() -> Any:
    run = watch(model := seeded(seed=1), mse, clip_norm=0.05)
    nested(model)

    def local_clip() -> None:
        shards = [each.grad.to_local() for each in model.parameters()]
        norm = torch.stack([each.norm() for each in shards]).norm()
        for each in shards:
            each.mul_(min(1.0, 0.05 / float(norm)))

    return train(run, model, sgd(model), before_step=local_clip)


@wrong("trains nothing")
def an_optimizer_made_before_fsdp() -> Any:
    run = watch(model := seeded(), mse)
    optimizer = sgd(model)
    return train(run, fully_shard(model), optimizer)


@right()
def fsdp_of_a_model_made_on_meta() -> Any:
    with torch.device("meta"):
        model = MLP()
    run = watch(model, mse)
    nested(model).to_empty(device="cpu")
    torch.manual_seed(0)
    for each in model.parameters():
        nn.init.normal_(each)
    return train(run, model, sgd(model))


# --- tensor parallelism ---


def split(model: nn.Module, **plan: Any) -> nn.Module:
    return parallelize_module(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), plan)


def tensor_parallel(make: Callable[[], nn.Module] = MLP, **output: Any) -> Any:
    plan = {"fc1": ColwiseParallel(), "fc2": RowwiseParallel(**output)}
    return loop(seeded(make), layout=lambda model: split(model, **plan), batch=alike)


class Drops(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(functional.dropout(self.act(self.fc1(x)), 0.3))


right(tensor_parallelism=tensor_parallel)
wrong(
    "the layout computes another forward",
    no_all_reduce_after_a_row=lambda: tensor_parallel(output_layouts=Partial()),
)
not_comparable(
    "draws other random numbers", "dropout off", dropout_between_shards=lambda: tensor_parallel(Drops)
)


@right()
def sequence_parallelism() -> Any:
    def make() -> nn.Module:
        names = ["emb", "norm", "fc1", "act", "fc2", "head"]
        parts = (
            nn.Embedding(16, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 16),
            nn.Tanh(),
            nn.Linear(16, 8),
            nn.Linear(8, 16),
        )
        model = nn.Sequential()
        for name, part in zip(names, parts, strict=True):
            model.add_module(name, part)
        return model

    plan = {
        "emb": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "fc1": ColwiseParallel(input_layouts=Shard(1)),
        "fc2": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return loop(
        seeded(make),
        loss=cross_entropy,
        layout=lambda model: split(model, **plan),
        optimizer=partial(torch.optim.AdamW, foreach=False),
        batch=partial(tokens, of_rank=0),
    )


@right("weights")
def a_loss_over_shards_of_the_vocabulary() -> Any:
    run = watch(model := seeded(LanguageModel))
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    split(model, fc=ColwiseParallel(output_layouts=Replicate()), head=head)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(2):
        optimizer.zero_grad()
        ids, labels = tokens(step, 0, of_rank=0)
        with loss_parallel():
            cross_entropy(model(ids), labels).backward()
        optimizer.step()
    return run


# --- ranks together ---


def raised_on_both_ranks(_: ProcessGroup) -> dict[str, Any]:
    run = watch(model := seeded(), mse, raises=True)
    try:
        train(run, DistributedDataParallel(model), sgd(model), micro=4, share=lambda number: 1.0)
    except VerificationError as error:
        return vars(error)
    return {}


def test_a_finding_is_raised_inside_the_step_of_every_rank() -> None:
    first, second = in_ranks(2, __file__, "raised_on_both_ranks")["raised_on_both_ranks"]
    assert "not divided by 4" in first["cause"]
    assert first == second


def one_step_more(_: ProcessGroup) -> list[Any]:
    """The first rank takes a step that the second does not."""
    run = watch(model := seeded(), mse)
    optimizer = sgd(model)
    train(run, DistributedDataParallel(model), optimizer, steps=1)
    before = [each.detach().clone() for each in model.parameters()]
    if rank() == 0:
        train(run, model, optimizer, steps=1)
    trains_on = any(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    return [run.steps, run.note, trains_on]


def test_a_rank_that_takes_a_step_more_says_so_and_trains_on() -> None:
    (steps, note, trains_on), (others_steps, _, others_train) = in_ranks(2, __file__, "one_step_more")[
        "one_step_more"
    ]
    assert steps == others_steps == 1
    assert "other ranks did not begin" in note
    assert (trains_on, others_train) == (True, False)
