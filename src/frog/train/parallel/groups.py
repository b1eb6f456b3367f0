"""Group parameters by how the data ranks keep them: the dense ones, and experts that ranks share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module

from torch import nn

from frog.core.config import StrategyConfig
from frog.core.config.strategies import DataStrategyEntry
from frog.train.comm import Axis
from frog.train.parallel.data.data_parallel import DataParallel, GroupSpec
from frog.train.parallel.mesh import Mesh


@dataclass
class ParameterGroup:
    """Some of the parameters, and how the data ranks keep them."""

    entry: DataStrategyEntry
    data: DataParallel
    copies: Axis
    """Ranks with the same reduced gradients and optimizer state, or with separate ones in separate replicas."""
    sharded_over: list[Axis]
    """Axes whose ranks hold different parameters: a sum over all parameters includes them."""

    @property
    def splits_parameters(self) -> bool:
        return "parameters" in self.entry.splits


def build_groups(config: StrategyConfig, mesh: Mesh, model: nn.Module, experts: set[str]) -> list[ParameterGroup]:
    """Group the dense parameters, over the data axis, and shared experts, over the ranks with the same experts."""
    named = dict(model.named_parameters())
    dense = {name: p for name, p in named.items() if name not in experts}
    num_tail = mesh.data.size + 1 if mesh.model.size == 1 else 0
    groups = [_group(GroupSpec(config, model, dense, mesh.shard, mesh.replicate, num_tail), mesh.data)]
    own = {name: p for name, p in named.items() if name in experts}
    if own and (groups[0].splits_parameters or any(p.requires_grad for p in own.values())):
        spec = GroupSpec(config, model, own, mesh.expert_data, mesh.world.axis.alone())
        group = _group(spec, mesh.expert_data)
        groups.append(replace(group, sharded_over=[*group.sharded_over, mesh.ep]))
    return groups


def _group(spec: GroupSpec, data: Axis) -> ParameterGroup:
    entry = spec.config.entry
    kept: DataParallel = import_module(entry.modules["frog"]).build(spec)
    if entry.splits or kept.is_sharded:
        return ParameterGroup(entry, kept, spec.replicate, [spec.shard])
    return ParameterGroup(entry, kept, data, [])
