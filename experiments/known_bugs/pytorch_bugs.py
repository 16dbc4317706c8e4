"""Known bugs of layouts in plain PyTorch, or shown with it."""

import torch
from known import bug
from torch import distributed, nn
from torch.distributed import ReduceOp
from torch.distributed import _functional_collectives as collectives
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import ColwiseParallel, loss, parallelize_module
from torch.nn import functional


def proof(model):
    """Batches of 6 and 5 rows, and mean squared error."""
    return [(torch.randn(rows, 6), torch.randn(rows, 8)) for rows in (6, 5)], None


PLAIN = {"package": "pytorch", "proof": proof}
THE_CALL = "PyTorch 2.13.0: the call that the pull request fixed"

# --- experts on data ranks -----------------------------------------------------------------------


class Gathered(nn.Module):
    """Experts on data ranks: each gathers all tokens, computes its own expert, and gets its own rows back.

    Each token goes to both experts, weighted by the router.
    """

    def __init__(self):
        super().__init__()
        self.inputs, self.router = nn.Linear(6, 8), nn.Linear(8, 2)
        self.experts = nn.ModuleDict({name: nn.Linear(8, 8) for name in "01"})
        self.tokens = self.weights = self.outputs = lambda x: x

    def forward(self, x):
        rows, x = len(x), torch.tanh(self.inputs(x))
        weights, tokens = self.weights(torch.softmax(self.router(x), dim=1)), self.tokens(x)
        found = [
            weights[:, [int(name)]] * torch.relu(expert(tokens)) for name, expert in self.experts.items()
        ]
        return self.outputs(sum(found))[:rows]


def gathered(model, tokens, weights):
    """An expert a rank; ``tokens`` and ``weights`` gather the rows of all ranks."""
    group, rank = distributed.group.WORLD, distributed.get_rank()
    for name in [name for name in model.experts if int(name) != rank]:
        del model.experts[name]
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(shared if name.startswith("experts") else average)
    model.tokens, model.weights = (lambda x: tokens(padded(x))), (lambda x: weights(padded(x)))
    model.outputs = lambda x: collectives.reduce_scatter_tensor_autograd(x, "sum", 0, group)
    return model


def padded(x):
    """The rows with rows of zeros after them, so that all ranks have equally many."""
    distributed.all_reduce(most := torch.tensor(len(x)), distributed.ReduceOp.MAX)
    return functional.pad(x, (0, 0, 0, int(most) - len(x)))


def all_gather(x):
    """The rows of all ranks; its backward adds up what the ranks have, and gives each its rows."""
    return collectives.all_gather_tensor_autograd(x, 0, distributed.group.WORLD)


def shared(parameter):
    """The gradient of an expert is the sum over the ranks' rows, and the loss a mean over the ranks."""
    parameter.grad /= distributed.get_world_size()


def average(parameter):
    """As DistributedDataParallel does."""
    distributed.all_reduce(parameter.grad)
    shared(parameter)


@bug("NVIDIA-NeMo/Automodel/pull/1260", run=THE_CALL, mesh="dp=2", module="inputs", model=Gathered, **PLAIN)
def automodel_1260(model, mesh, is_wrong):
    """full_tensor() gathers the tokens for experts that differ by rank: its backward slices and adds nothing up."""

    def tokens(x):
        return DTensor.from_local(x, mesh, [Shard(0)]).full_tensor()

    return gathered(model, tokens if is_wrong else all_gather, all_gather)


@bug("NVIDIA-NeMo/Automodel/pull/2995", run=THE_CALL, mesh="dp=2", module="router", model=Gathered, **PLAIN)
def automodel_2995(model, mesh, is_wrong):
    """Routing weights are gathered by a collective without a backward: the router gets no gradient."""

    def weights(x):
        pieces = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
        distributed.all_gather(pieces, x.detach())
        return torch.cat(pieces)

    return gathered(model, all_gather, weights if is_wrong else all_gather)


# --- fully_shard and tensor parallelism ----------------------------------------------------------


def perceptron():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8))


@bug(
    "pytorch/pytorch/issues/162338",
    run="PyTorch 2.13.0 with the sum that gloo computed",
    mesh="dp=2",
    module="2",
    model=perceptron,
    **PLAIN,
)
def pytorch_162338(model, mesh, is_wrong):
    """gloo takes the average that fully_shard asks for as a sum."""
    if is_wrong:
        sums = (None, None, ReduceOp.SUM, ReduceOp.SUM)
        _fsdp_collectives._get_gradient_divide_factors = lambda *arguments, **options: sums
    return fully_shard(model, mesh=mesh)


class Scores(nn.Module):
    """The logarithms of probabilities, which a loss on all of them reads."""

    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Linear(6, 8), nn.Linear(8, 8)

    def forward(self, x):
        scores = torch.log_softmax(self.head(torch.tanh(self.up(x))), dim=-1)
        return scores.full_tensor() if hasattr(scores, "full_tensor") else scores


@bug("pytorch/pytorch/issues/190746", run="PyTorch 2.13.0", mesh="tp=2", module="head", model=Scores, **PLAIN)
def pytorch_190746(model, mesh, is_wrong):
    """loss_parallel takes the gradient of a log_softmax for granted, whatever reads it."""
    if is_wrong:
        loss._enable_custom_loss_ops()
    plan = {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    return parallelize_module(model, mesh, plan)


class Experts(nn.Module):
    """Two layers whose hidden features are split over the ranks."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(16, 8)), nn.Parameter(torch.randn(8, 16))
        self.on = None

    def forward(self, x):
        if self.on is None:
            return torch.relu(x @ self.up.T) @ self.down.T
        mesh, grads = self.on
        inputs = ([Replicate()], [Shard(0)], [Shard(1)])
        compute = local_map(
            lambda x, up, down: torch.relu(x @ up.T) @ down.T,
            out_placements=[Partial()],
            in_placements=inputs,
            in_grad_placements=grads and (grads, *inputs[1:]),
            device_mesh=mesh,
        )
        x = DTensor.from_local(x, mesh, [Replicate()])
        return compute(x, self.up, self.down).redistribute(placements=[Replicate()]).to_local()


def experts():
    found = nn.Sequential()
    found.add_module("inputs", nn.Linear(6, 8))
    found.add_module("experts", Experts())
    return found


@bug("pytorch/torchtitan/pull/4054", run=THE_CALL, mesh="tp=2", module="inputs", model=experts, **PLAIN)
def torchtitan_4054(model, mesh, is_wrong):
    """Experts under local_map: without gradient placements each rank keeps its own part of the gradient of their inputs."""
    experts = model.experts
    experts.up = nn.Parameter(distribute_tensor(experts.up.detach(), mesh, [Shard(0)]))
    experts.down = nn.Parameter(distribute_tensor(experts.down.detach(), mesh, [Shard(1)]))
    experts.on = mesh, None if is_wrong else [Partial()]
    return model
