"""Build the strategy that a run's configuration describes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from frog.core.config import RunConfig, StrategyConfig
from frog.core.config.strategies import AXES
from frog.train.comm import World
from frog.train.model.transformer import TinyTransformer
from frog.train.parallel.mesh import Mesh
from frog.train.parallel.scratch import FromScratch
from frog.train.parallel.strategy import MakeOptimizer, Strategy


def build_mesh(config: RunConfig, world: World) -> Mesh:
    """Build the mesh that a run configures. A collective call."""
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
    """Distribute `model` over the mesh. A collective call: every rank passes a full model; rank 0's weights count."""
    build: Callable[..., Strategy] = FromScratch
    if config.strategy.file is not None:
        from frog.train.parallel.own import OwnStrategy

        build = OwnStrategy
    elif config.strategy.implementation != "frog":
        build = _native(config.strategy)
    return build(config, mesh, model, make_optimizer, autocast)


def _native(strategy: StrategyConfig) -> Callable[..., Strategy]:
    """Return the implementation of a native strategy: the one that splits the model, else the data strategy's.

    Imports happen only here, because each implementation loads large packages.
    """
    cut = next((AXES[axis] for axis in ("pp", "tp") if getattr(strategy, axis) > 1), None)
    entry = cut or strategy.entry
    build: Callable[..., Strategy] = import_module(entry.modules[strategy.implementation]).build
    return build
