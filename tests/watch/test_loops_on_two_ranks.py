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
    LanguageModel,
    check_on_two_ranks,
    clip,
    cross_entropy,
    loop,
    mse,
    normalized,
    numbers,
    rank,
    scaled,
    sgd,
    steps_of,
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
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from dpexp.config.errors import VerificationError
from dpexp.distributed.group import ProcessGroup

claims = Claims()
right, wrong, not_comparable = claims.right, claims.wrong, claims.not_comparable
ddp = partial(loop, layout=DistributedDataParallel)


@pytest.mark.parametrize("name", claims)
def test_the_verdict_of(name: str) -> None:
    check_on_two_ranks(__name__, name)


# --- models, and data ---


def seeded(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return MLP()


def alike(step: int, micro: int) -> Any:
    """The same inputs and targets on every rank, as tensor parallelism takes them."""
    return numbers(step, micro, of_rank=0)


# --- DDP ---

right(
    ddp_with_a_static_graph=lambda: loop(
        layout=partial(DistributedDataParallel, static_graph=True, gradient_as_bucket_view=True)
    ),
    ddp_clipped=lambda: ddp(micro=2, clip_norm=0.1, before_step=clip(0.1)),
    ddp_with_batch_norm_and_dropout=lambda: ddp(normalized(), micro=2),
    ddp_compiled=lambda: loop(
        layout=lambda model: torch.compile(DistributedDataParallel(model), backend="aot_eager")
    ),
    ddp_of_models_with_other_seeds=lambda: ddp(seeded(rank())),
    ddp_with_autocast_and_grad_scaler=lambda: scaled(
        is_fused=True,
        layout=DistributedDataParallel,
        cast=lambda: torch.autocast("cpu", torch.bfloat16),
    ),
    replicate_in_place=lambda: loop(layout=lambda model: replicate(model) or model, micro=2),
)
right("weights", ddp_without_a_loss=lambda: ddp(loss=None))
right("equal rows", ranks_with_equal_rows=lambda: ddp(batch=alike))
wrong(
    "ranks of unequal rows are averaged as if equal",
    ddp_with_unequal_rows_on_ranks=lambda: ddp(
        batch=lambda step, number: numbers(step, number, 4 + 3 * rank())
    ),
)
wrong(
    "differs between ranks after the step", "an optimizer of another state",
    a_learning_rate_of_each_rank=lambda: ddp(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1 + 0.1 * rank())
    ),
)  # fmt: skip
wrong(
    "clipped by each rank's own norm", "so ranks differ",
    clipped_by_a_norm_of_each_rank=lambda: ddp(
        clip_norm=0.05, before_step=lambda model, _: clip(0.05 + 0.02 * rank())(model, _)
    ),
)  # fmt: skip


@right()
def ddp_with_uneven_rows_weighted() -> Any:
    sizes = [[4, 4, 2], [4, 4, 3]]
    return ddp(
        micro=3,
        batch=lambda step, number: numbers(step, number, sizes[rank()][number]),
        share=lambda number: 2 * sizes[rank()][number] / 21,
    )


@right()
def ddp_with_tied_weights_and_other_random_numbers_on_ranks() -> Any:
    run = watch(model := LanguageModel(is_tied=True, dropout=0.3), cross_entropy)
    parallel = DistributedDataParallel(model)
    torch.manual_seed(5 + rank())
    return train(run, parallel, sgd(model.parameters()), batch=tokens, micro=2)


@right("update was not compared")
def the_update_of_a_zero_redundancy_optimizer() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of torch.jit.script

    return ddp(optimizer=partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW))


def with_communication(hook: Any) -> Any:
    def laid_out(model: nn.Module) -> nn.Module:
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(None, hook)
        return parallel

    return loop(layout=laid_out)


def rounds(_: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: (done.value()[0] / 2 * 32).round() / 32)


not_comparable(
    "DDP's communication hook rounds changes gradients",
    a_communication_hook_that_loses_digits=lambda: with_communication(rounds),
)


class WithAnUnusedOutput(MLP):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = super().forward(x)
        return outputs, outputs.double()


@right()
def an_output_without_a_gradient() -> Any:
    run = watch(model := WithAnUnusedOutput(), mse)
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    return train(run, lambda x: parallel(x)[0], sgd(model.parameters()))


def unfrozen_late() -> Any:
    run = watch(model := MLP(), mse)
    model.fc1.requires_grad_(False)
    parallel = DistributedDataParallel(model)
    model.fc1.requires_grad_(True)
    return train(run, parallel, sgd(model.parameters()))


def taken_by_grad() -> Any:
    run = watch(model := MLP(), mse)
    parallel, optimizer = DistributedDataParallel(model), sgd(model.parameters())
    for step in range(3):
        inputs, labels = numbers(step, 0)
        own = list(model.parameters())
        for each, gradient in zip(
            own, torch.autograd.grad(run.loss(parallel(inputs), labels), own), strict=True
        ):
            each.grad = gradient
        optimizer.step()
    return run


wrong("own rows only", "made trainable after the wrapper", made_trainable_after_ddp=unfrozen_late)
wrong("own rows only", "torch.autograd.grad takes them", gradients_by_autograd_grad=taken_by_grad)
wrong(
    "own rows only", "not divided by 2",
    two_faults=lambda: ddp(micro=2, share=lambda number: 1.0, during=lambda model, _: model.no_sync()),
)  # fmt: skip
right(
    a_penalty_on_weights=lambda: with_penalty(DistributedDataParallel),
    a_penalty_on_shards=lambda: with_penalty(fully_shard),
)


def with_penalty(layout: Callable[[nn.Module], Any]) -> Any:
    run = watch(model := MLP(), mse)
    laid_out = layout(model)
    for step in steps_of(sgd(model.parameters())):
        for number in range(2):
            inputs, labels = numbers(step, number)
            penalty: Any = sum(each.pow(2).sum() for each in model.parameters())
            penalty = penalty.full_tensor() if hasattr(penalty, "full_tensor") else penalty
            ((run.loss(laid_out(inputs), labels) + 0.1 * penalty) / 2).backward()
    return run


# --- a number that divides the loss ---


def by_count(counts: tuple[int, int], is_global: bool = False, times: int = 1) -> Any:
    def loss(logits: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
        return functional.cross_entropy(logits, labels, reduction="sum") / count

    run = watch(model := nn.Linear(8, 5), loss)
    parallel, rows = DistributedDataParallel(model), counts[rank()]
    torch.manual_seed(rank())
    for _ in steps_of(sgd(model.parameters())):
        outputs, labels = parallel(torch.randn(rows, 8)), torch.randint(0, 5, (rows,))
        (run.loss(outputs, labels, sum(counts) if is_global else rows) * times).backward()
    return run


right(
    a_count_of_all_ranks=lambda: by_count((12, 4), is_global=True, times=2),
    own_counts_that_are_equal=lambda: by_count((8, 8)),
)
wrong(
    "ranks of unequal labels are averaged as if equal",
    own_counts=lambda: by_count((12, 4)),
    own_counts_times_the_ranks=lambda: by_count((12, 4), times=2),
)


# --- collectives with a backward ---


class Gathers(torch.autograd.Function):
    """The rows of all ranks, as SimCLR's layer gathers them: its backward adds the ranks' gradients."""

    is_added = True

    @staticmethod
    def forward(_: Any, some: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(some) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, some)
        return torch.cat(parts)

    @classmethod
    def backward(cls, _: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        if cls.is_added:
            distributed.all_reduce(gradient)
        return gradient.chunk(distributed.get_world_size())[distributed.get_rank()]


class GathersOwn(Gathers):
    is_added = False


class AveragesBackward(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, some: torch.Tensor) -> torch.Tensor:
        return some.view_as(some)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        distributed.all_reduce(gradient)
        return gradient / distributed.get_world_size()


class Averaged(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(AveragesBackward.apply(self.act(self.fc1(x))))


class GathersInside(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x)
        if distributed.get_world_size() > 1:
            outputs = Gathers.apply(outputs)
        return (outputs @ outputs.T).logsumexp(1).mean()


def contrastive_by(gathers: Any) -> Any:
    def loss(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        some, others = gathers.apply(some), gathers.apply(others)
        return functional.cross_entropy(some @ others.T, torch.arange(len(some)))

    return ddp(loss=loss)


@not_comparable("the forward of the model asks for other ranks", "move that to the loss")
def a_loss_inside_the_model_that_gathers() -> Any:
    run = watch(model := GathersInside())
    parallel = DistributedDataParallel(model)
    for step in steps_of(sgd(model.parameters())):
        parallel(numbers(step, 0)[0]).backward()
    return run


right("equal rows", gradients_averaged_inside_of_the_model=lambda: ddp(Averaged(), batch=alike))
right(rows_gathered_with_a_backward=lambda: contrastive_by(Gathers))
wrong(
    "divided by the number of ranks once too often", "an all_reduce without a backward",
    rows_gathered_with_a_backward_of_own_rows=lambda: contrastive_by(GathersOwn),
)  # fmt: skip


@not_comparable("the optimizer synchronizes them itself")
def an_optimizer_that_synchronizes() -> Any:
    class Synchronizes(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for each in self.param_groups[0]["params"]:
                distributed.all_reduce(each.grad, distributed.ReduceOp.SUM)
                each.grad /= 2
            return super().step(closure)

    return loop(optimizer=lambda parameters: Synchronizes(parameters, lr=0.1))


# --- synchronization by hand, and without ---


def mean_over_ranks(divisor: int = 2, skips: str = "-") -> Callable[[nn.Module, Any], None]:
    """What a user writes instead of DistributedDataParallel."""

    def act(model: nn.Module, _: Any) -> None:
        for name, each in model.named_parameters():
            if not name.startswith(skips):
                distributed.all_reduce(each.grad)
                each.grad /= divisor

    return act


def no_sync(is_left_on: Callable[[int], bool]) -> Any:
    def during(model: Any, number: int) -> AbstractContextManager[Any]:
        return model.no_sync() if is_left_on(number) else nullcontext()

    return ddp(micro=4, during=during)


right(
    gradients_averaged_by_hand=lambda: loop(micro=2, before_step=mean_over_ranks()),
    no_sync_until_the_last_pass=lambda: no_sync(lambda number: number < 3),
)
wrong(
    "a sum over 2 ranks instead of the mean",
    gradients_summed_by_hand=lambda: loop(micro=3, before_step=mean_over_ranks(divisor=1)),
)
wrong(
    "differs between ranks before the step", "were not seeded alike",
    models_with_other_seeds=lambda: loop(seeded(rank()), before_step=mean_over_ranks()),
)  # fmt: skip
wrong(
    "2 of 4 parameters", "'fc2.bias'", "rank 0 has the gradients of its own rows only",
    a_part_that_is_not_synchronized=lambda: loop(before_step=mean_over_ranks(skips="fc2")),
)  # fmt: skip
wrong(
    "no_sync was left on the last 3 of 4 backward passes, so ranks differ",
    no_sync_off_by_one=lambda: no_sync(lambda number: number > 0),
)
wrong(
    "rank 0 has the gradients of its own rows only", "no_sync", "without its wrapper",
    no_sync_on_every_pass=lambda: no_sync(lambda number: True),
    the_module_inside_ddp_called=lambda: loop(layout=lambda model: DistributedDataParallel(model).module),
)  # fmt: skip


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
    an_all_reduce_in_the_loss=lambda: ddp(loss=mean_by_all_reduce),
    an_all_gather_in_the_loss=lambda: ddp(loss=contrastive_over_ranks),
)


# --- FSDP2 ---


def nested(model: nn.Module, **options: Any) -> nn.Module:
    for part in model.children():
        if list(part.parameters()):
            fully_shard(part, **options)
    return fully_shard(model, **options)


def float_mse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return mse(outputs.float(), targets)


def without_sync_but(last: int) -> Any:
    def during(model: Any, number: int) -> AbstractContextManager[Any]:
        model.set_requires_gradient_sync(number == last)
        return nullcontext()

    return loop(layout=nested, micro=3, during=during)


def clip_shards(model: nn.Module, _: Any) -> None:
    shards = [each.grad.to_local() for each in model.parameters()]  # type: ignore[operator, union-attr]
    norm = torch.stack([each.norm() for each in shards]).norm()
    for each in shards:
        each.mul_(min(1.0, 0.05 / float(norm)))


bfloat16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
reduced = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
right(
    fsdp_clipped=lambda: loop(layout=nested, micro=2, before_step=clip(0.05)),
    fsdp_of_one_row_on_two_ranks=lambda: loop(
        MLP(hidden=1),
        layout=nested,
        before_step=lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), 0.05, norm_type=1.0),
    ),
    fsdp_with_muon=lambda: loop(
        nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False)),
        layout=nested,
        optimizer=torch.optim.Muon,
    ),
    fsdp_with_batch_norm_and_dropout=lambda: loop(normalized(), layout=fully_shard, micro=2),
    fsdp_in_bfloat16=lambda: loop(loss=float_mse, layout=partial(nested, mp_policy=bfloat16)),
    fsdp_reduced_in_bfloat16=lambda: loop(layout=partial(nested, mp_policy=reduced)),
    fsdp_synchronized_on_the_last_pass=lambda: without_sync_but(2),
)
right("rank 0", fsdp_of_models_with_other_seeds=lambda: loop(seeded(rank()), layout=fully_shard))
not_comparable(
    "FSDP1",
    fsdp1=lambda: loop(
        layout=partial(FullyShardedDataParallel, use_orig_params=True, device_id=torch.device("cpu"))
    ),
)
wrong("the last of 3 backward passes", fsdp_synchronized_too_early=lambda: without_sync_but(1))
wrong(
    "clipped by each rank's own norm",
    fsdp_clipped_by_the_norm_of_shards=lambda: loop(
        seeded(1), layout=nested, clip_norm=0.05, before_step=clip_shards
    ),
)


@wrong("trains nothing")
def an_optimizer_made_before_fsdp() -> Any:
    run = watch(model := MLP(), mse)
    optimizer = sgd(model.parameters())
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
    return train(run, model, sgd(model.parameters()))


# --- tensor parallelism ---


def split(model: nn.Module, **plan: Any) -> nn.Module:
    return parallelize_module(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), plan)


def tensor_parallel(model: nn.Module | None = None, **output: Any) -> Any:
    plan = {"fc1": ColwiseParallel(), "fc2": RowwiseParallel(**output)}
    return loop(model, layout=lambda model: split(model, **plan), batch=alike)


class Drops(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(functional.dropout(self.act(self.fc1(x)), 0.3))


right(
    tensor_parallelism=tensor_parallel,
    tensor_parallelism_on_a_mesh_without_names=lambda: loop(
        layout=lambda model: parallelize_module(
            model, init_device_mesh("cpu", (2,)), {"fc1": ColwiseParallel(), "fc2": RowwiseParallel()}
        ),
        batch=alike,
    ),
)
wrong(
    "the layout computes another forward",
    no_all_reduce_after_a_row=lambda: tensor_parallel(output_layouts=Partial()),
)
not_comparable(
    "draws other random numbers", "dropout off",
    dropout_between_shards=lambda: tensor_parallel(Drops()),
)  # fmt: skip


@right("weights")
def a_loss_over_shards_of_the_vocabulary() -> Any:
    run = watch(model := LanguageModel())
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    split(model, fc=ColwiseParallel(output_layouts=Replicate()), head=head)
    for step in steps_of(torch.optim.AdamW(model.parameters(), foreach=False), 2):
        ids, labels = tokens(step, 0, of_rank=0)
        with loss_parallel():
            cross_entropy(model(ids), labels).backward()
    return run


# --- ranks together ---


def raised_on_both_ranks(_: ProcessGroup) -> dict[str, Any]:
    run = watch(model := MLP(), mse, raises=True)
    parallel = DistributedDataParallel(model)
    try:
        train(run, parallel, sgd(model.parameters()), micro=4, share=lambda number: 1.0)
    except VerificationError as error:
        return vars(error)
    return {}


def test_a_finding_is_raised_inside_the_step_of_every_rank() -> None:
    first, second = in_ranks(2, __file__, "raised_on_both_ranks")["raised_on_both_ranks"]
    assert "the loss of each of 4 micro-batches is not divided by 4" in first["cause"]
    assert (first["kind"], first["step"], first["module"]) == ("gradients", 1, "")
    assert first["error"] == pytest.approx(3)
    assert first == second


def one_step_more(_: ProcessGroup) -> list[Any]:
    """The first rank takes a step that the second does not."""
    run = watch(model := MLP(), mse)
    optimizer = sgd(model.parameters())
    train(run, DistributedDataParallel(model), optimizer, steps=1)
    before = [each.detach().clone() for each in model.parameters()]
    if rank() == 0:
        train(run, model, optimizer, steps=1)
    trains_on = any(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    return [run.steps, run.note, trains_on]


def test_a_rank_that_takes_a_step_more_says_so_and_trains_on() -> None:
    first, (others_steps, _, others_train) = in_ranks(2, __file__, "one_step_more")["one_step_more"]
    steps, note, trains_on = first
    assert steps == others_steps == 1
    assert "other ranks did not begin" in note
    assert (trains_on, others_train) == (True, False)
