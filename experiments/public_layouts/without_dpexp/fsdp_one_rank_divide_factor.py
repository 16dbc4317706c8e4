"""fully_shard on a mesh of one rank divides gradients by their factor twice, if they are reduced in float16 or float64."""

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 1


def gradient(dtype, factor):
    model = nn.Linear(4, 1, bias=False).to(dtype)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    model.set_gradient_divide_factor(factor)
    model(torch.ones(1, 4, dtype=dtype)).sum().backward()
    return model.weight.grad.full_tensor()[0, 0].item()


distributed.init_process_group("gloo")
found = {
    dtype: gradient(dtype, 4.0) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
}
print("a gradient of 1, divided by 4:", ", ".join(f"{value} in {dtype}" for dtype, value in found.items()))
assert found[torch.float32] == found[torch.bfloat16] == 0.25
assert found[torch.float16] == found[torch.float64] == 0.25**2
distributed.destroy_process_group()
