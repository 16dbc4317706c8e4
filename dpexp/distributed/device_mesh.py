"""torch's DeviceMesh and dpexp's Mesh: one made from the other."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dpexp.config.mesh import Dimension, Mesh


def make_device_mesh(mesh: Mesh, device: torch.device) -> DeviceMesh:
    """The DeviceMesh of all ranks, with their devices of this kind; every rank must call this."""
    sizes = tuple(dimension.size for dimension in mesh.dimensions)
    names = tuple(dimension.name for dimension in mesh.dimensions)
    return init_device_mesh(device.type, sizes, mesh_dim_names=names)


def dimensions_of(device_mesh: Any) -> tuple[Dimension, ...]:
    """The dimensions of a DeviceMesh; one without names has empty ones."""
    sizes = device_mesh.shape
    names = device_mesh.mesh_dim_names or ("",) * len(sizes)
    return tuple(map(Dimension, names, sizes))


def as_mesh(device_mesh: Any) -> Mesh:
    """The Mesh of a DeviceMesh, whose ranks may be in any order."""
    return Mesh(dimensions_of(device_mesh), tuple(device_mesh.mesh.flatten().tolist()))
