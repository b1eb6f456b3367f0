"""From a run's configuration to its strategy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from frog.comm import World
from frog.config import RunConfig
from frog.model.transformer import TinyTransformer
from frog.parallel.mesh import Mesh
from frog.parallel.scratch import FromScratch
from frog.parallel.strategy import MakeOptimizer, Strategy


def build_mesh(config: RunConfig, world: World) -> Mesh:
    """The mesh that a run asks for. A collective call."""
    axes = config.strategy
    dp = axes.dp_size(world.size)
    return Mesh(world, pp=axes.pp, dp=dp, cp=axes.cp, tp=axes.tp, shard=axes.shard, ep=axes.ep)


def build_strategy(
    config: RunConfig,
    mesh: Mesh,
    model: TinyTransformer,
    make_optimizer: MakeOptimizer,
    autocast: AbstractContextManager[Any] | None = None,
) -> Strategy:
    """Spread `model` over the mesh. A collective call: every rank gives a whole model, and rank 0's weights count."""
    if config.strategy.implementation != "frog":
        return _native(config)(config, mesh, model, make_optimizer, autocast)
    return FromScratch(config, mesh, model, make_optimizer, autocast)


def _native(config: RunConfig) -> Callable[..., Strategy]:
    """Who carries a native strategy out. Imported only then: each brings much with it."""
    strategy = config.strategy
    if strategy.implementation == "deepspeed":
        from frog.parallel.deepspeed import DeepSpeed

        return DeepSpeed
    if strategy.pp > 1:
        from frog.parallel.torch_pipeline import TorchPipeline

        return TorchPipeline
    if strategy.name in ("zero2", "zero3") or strategy.tp > 1:
        from frog.parallel.torch_fsdp import TorchFSDP

        return TorchFSDP
    from frog.parallel.torch_ddp import TorchDDP

    return TorchDDP
