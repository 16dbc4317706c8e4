"""replicate: aliases and copies, what is shared, gradients, and nothing stale."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from helpers.command_lines import ROOT, python
from torch import nn

from dpexp.devices import virtual
from dpexp.parallel import DataParallel, replicate

HERE = str(Path(__file__).parent)


def norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))


class Tied(nn.Module):
    """One weight under two names, and one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.again = self.layer
        self.other = nn.Linear(3, 3)
        self.other.weight = self.layer.weight


def test_replica_0_aliases_the_module_and_the_others_are_copies() -> None:
    net = norm_net()
    first, second = replicate(net, virtual(2))
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        layer, attribute = name.split(".")
        mine, copy = (getattr(replica[int(layer)], attribute) for replica in (first, second))
        assert mine.data_ptr() == tensor.data_ptr()
        assert copy.data_ptr() != tensor.data_ptr()
        assert torch.equal(mine, copy)
        assert mine.device.type == copy.device.type == "cpu"


@pytest.mark.parametrize("sparse", [True, False])
def test_sparse_gradients_of_many_replicas_stay_sparse_unless_one_is_dense(sparse: bool) -> None:
    table = nn.Embedding(5, 2, sparse=True)
    replicas = replicate(table, virtual(4))
    ids = torch.tensor([1, 3])
    terms = [replica(ids).sum() * (i + 1) for i, replica in enumerate(replicas)]
    if not sparse:
        terms[1] = replicas[1].weight.sum() * 2
    sum(terms).backward()
    grad = table.weight.grad
    assert grad.is_sparse == sparse
    outside = 0.0 if sparse else 2.0
    expected = [[outside] * 2 if row not in (1, 3) else [10.0] * 2 for row in range(5)]
    assert grad.to_dense().tolist() == expected


def test_detached_replicas_send_no_gradient_back() -> None:
    for replica in replicate(norm_net(), virtual(2), detach=True):
        assert not any(t.requires_grad for t in (replica[0].weight, replica[1].weight))


def test_running_statistics_are_those_of_replica_0() -> None:
    wrapped, single = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    x = torch.randn(9, 3)
    DataParallel(wrapped, virtual(3))(x)
    single(x[:3])
    torch.testing.assert_close(wrapped.running_mean, single.running_mean)
    torch.testing.assert_close(wrapped.running_var, single.running_var)
    assert wrapped.num_batches_tracked == 1


def test_tied_parameters_and_shared_layers_stay_tied() -> None:
    for replica in replicate(Tied(), virtual(2)):
        assert replica.layer is replica.again
        assert replica.other.weight is replica.layer.weight


def test_replicas_leave_no_reference_cycles_and_die_with_their_call() -> None:
    """In a process of its own: what other threads of this one drop at that moment is none of theirs."""
    done = python(
        "-c",
        "import test_replicate; print(test_replicate.left_by_replicas())",
        PYTHONPATH=f"{HERE}:{ROOT}/tests",
    )
    assert done.stdout == "(True, 0)\n", done.stderr


def left_by_replicas() -> tuple[bool, int]:
    """Whether a replica died with its call, and how many objects only the collector could free."""
    net = DataParallel(norm_net(), virtual(3))
    net(torch.zeros(6, 4))
    gc.collect()
    gc.disable()
    net(torch.zeros(6, 4)).sum().backward()
    replica = weakref.ref(replicate(net.module, virtual(2))[1])
    return replica() is None, gc.collect()
