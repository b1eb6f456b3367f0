"""Convert some axes of Frog's mesh to torch's DeviceMesh."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from frog.train.comm import Axis
from frog.train.parallel.mesh import Mesh


class Grid:
    """torch's mesh of this rank over some axes, the slowest first, on the existing process groups.

    Axes of one rank are omitted. Names are new each time: torch caches the data of a mesh, groups included, and
    treats two meshes with the same names and ranks as one, even if the groups of the first are gone.
    """

    _count = itertools.count()

    def __init__(self, mesh: Mesh, axes: Mapping[str, Axis]) -> None:
        number = next(self._count)
        self._names = {name: f"{name}_{number}" for name, axis in axes.items() if axis.size > 1}
        self._mesh: DeviceMesh | None = None
        if self._names:
            used = [axes[name] for name in self._names]
            ranks = torch.tensor(mesh.world.rank)
            for axis in used:
                ranks = ranks.unsqueeze(-1) + torch.tensor([rank - mesh.world.rank for rank in axis.ranks])
            groups: Any = [axis.group or dist.group.WORLD for axis in used]
            self._mesh = DeviceMesh.from_group(
                groups,
                mesh.world.device.type,
                mesh=ranks,
                mesh_dim_names=tuple(self._names.values()),
            )

    def submesh(self, *axes: str) -> DeviceMesh | None:
        """Return the mesh of those of these axes that have several ranks; None if none has."""
        names = tuple(self._names[name] for name in axes if name in self._names)
        return self._mesh[names] if self._mesh is not None and names else None
