"""Loops on an accelerator are compared on it, and their random numbers stay what they were."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpexp
from dpexp.config.errors import VerificationError

pytestmark = pytest.mark.gpu


def train(*, micro: int = 2, divisor: int = 2, autocast: bool = False, wrapped: bool = False, steps: int = 4):
    """Watched, and the same loop unwatched: the watch, and the parameters and the random state of both."""
    watch, ends = None, []
    for watched in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4)).cuda()
        run = dpexp.watch(model, F.mse_loss, steps=steps, track=False) if watched else None
        loss = run.loss if run is not None else F.mse_loss
        module = nn.DataParallel(model, device_ids=[0]) if wrapped else model
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cuda", enabled=autocast)
        for _ in range(steps + 1):
            optimizer.zero_grad()
            for _ in range(micro):
                inputs, targets = torch.randn(6, 8).cuda(), torch.randn(6, 4).cuda()
                with torch.autocast("cuda", torch.float16) if autocast else nullcontext():
                    outputs = module(inputs)
                scaler.scale(loss(outputs.float(), targets) / divisor).backward()
            scaler.step(optimizer)
            scaler.update()
        ends.append(([each.detach().clone() for each in model.parameters()], torch.cuda.get_rng_state()))
        watch = run if run is not None else watch
    return watch, ends


@pytest.mark.parametrize("options", [{}, {"autocast": True}, {"wrapped": True}])
def test_a_right_loop_is_right_and_unchanged(options):
    run, (watched, plain) = train(**options)
    assert run.verdict().steps >= 3
    assert all(map(torch.equal, watched[0], plain[0]))
    assert torch.equal(watched[1], plain[1])


def test_a_wrong_loop_is_wrong():
    run, _ = train(divisor=1)
    with pytest.raises(VerificationError) as caught:
        run.verdict()
    assert "not divided by 2" in caught.value.cause
