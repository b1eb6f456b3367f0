"""Which parameters the data ranks keep in which way: the dense ones, and experts that are shared out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from frog.comm import Axis
from frog.config import StrategyConfig
from frog.parallel.data import DataParallel
from frog.parallel.ddp import BucketedDDP, NaiveDDP, OverlappedDDP
from frog.parallel.mesh import Mesh
from frog.parallel.zero1 import Zero1
from frog.parallel.zero2 import Unit, Zero2, units_of
from frog.parallel.zero3 import Zero3


@dataclass
class ParameterGroup:
    """Some of the parameters, and how the data ranks keep them."""

    data: DataParallel
    copies: Axis
    """Ranks that hold the same reduced gradients and optimizer state."""
    sharded_over: list[Axis]
    """Axes whose ranks hold different ones: a sum over all parameters goes over these too."""


def build_groups(config: StrategyConfig, mesh: Mesh, model: nn.Module, experts: set[str]) -> list[ParameterGroup]:
    """The dense parameters, kept over the data axis; and experts that are shared out, over ranks with the same ones."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    dense = {name: p for name, p in named.items() if name not in experts}
    kept = _data_parallel(config, mesh, model, dense, mesh.shard, mesh.replicate)
    groups = [_group(kept, mesh.data, mesh.shard, mesh.replicate)]
    if own := {name: p for name, p in named.items() if name in experts}:
        alone = mesh.world.axis.alone()
        kept = _data_parallel(config, mesh, model, own, mesh.expert_data, alone)
        group = _group(kept, mesh.expert_data, mesh.expert_data, alone)
        groups.append(replace(group, sharded_over=[*group.sharded_over, mesh.ep]))
    return groups


def _group(kept: DataParallel, data: Axis, shard: Axis, replicate: Axis) -> ParameterGroup:
    return ParameterGroup(kept, data, []) if kept.keeps_whole_gradients else ParameterGroup(kept, replicate, [shard])


def _data_parallel(
    config: StrategyConfig,
    mesh: Mesh,
    model: nn.Module,
    named: dict[str, nn.Parameter],
    shard: Axis,
    replicate: Axis,
) -> DataParallel:
    if config.name == "zero3":
        return Zero3(model, shard, replicate)
    if config.name == "zero2":
        return Zero2([Unit(unit, shard) for unit in units_of(model).values() if unit], shard, replicate)
    if config.name == "zero1":
        return Zero1(named, shard, replicate)
    data = shard if replicate.size == 1 else mesh.data
    if config.reduction == "naive":
        return NaiveDDP(named, data)
    kind = OverlappedDDP if config.reduction == "overlapped" else BucketedDDP
    num_tail = data.size + 1 if data is mesh.data and mesh.model.size == 1 else 0
    return kind(named, data, num_tail, config.bucket_mb * 1e6)
