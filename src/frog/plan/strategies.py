"""Compare the strategies for one model and world: memory, traffic, bubble, and when to use which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from frog.core.config import RunConfig, StrategyConfig
from frog.core.config.strategies import AXES, DATA_STRATEGIES, HYBRID, find_strategy
from frog.plan.layout import RankShare
from frog.plan.memory import PARTS, Memory, rank_memory
from frog.plan.traffic import step_traffic
from frog.train.parallel.schedules.schedule import NAMES as SCHEDULES
from frog.train.parallel.schedules.simulation import bubble_formula


def describe(strategy: StrategyConfig, world_size: int) -> list[str]:
    """Describe a run's strategies in sentences."""
    axes = [name for name in AXES if getattr(strategy, name) > 1]
    # With cp alone, averaging adds nothing that the sentence about the ring does not say.
    has_data = strategy.dp_size(world_size) > 1 or (strategy.cp > 1 and strategy.entry.splits)
    data = [strategy.entry, *([HYBRID] if strategy.shard else [])] if has_data else []
    return [entry.summary for entry in [*data, *(AXES[name] for name in axes)]]


@dataclass(frozen=True)
class Row:
    """One strategy in one world; if it is not possible, `memory` is None and `problems` gives the reasons."""

    name: str
    kind: str
    """Name of its entry; for a product, the names joined by +."""
    mesh: dict[str, int]
    num_micro: int
    problems: list[str]
    memory: Memory | None = None
    """Memory of the rank that holds most."""
    sent_bytes: float = 0.0
    """Bytes per step of the rank that sends most; the mean over a round if the strategy trains separate replicas."""
    num_messages: int = 0
    bubble: float | None = None
    """The pipeline's bubble as a fraction of the time; None without a pipeline."""

    @property
    def use(self) -> str:
        """Advice on when to use the strategy; for a product, the reasons of its parts."""
        return "; ".join(find_strategy(name).use for name in self.kind.split("+"))

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values; memory and traffic in bytes."""
        names = (*PARTS, "passing", "total")
        memory = None if self.memory is None else {name: getattr(self.memory, name) for name in names}
        return {**vars(self), "memory": memory, "use": self.use}


def compare_strategies(config: RunConfig, world_size: int) -> list[Row]:
    """Return every strategy and product that fits a world of this size, for the model and batch of `config`."""
    return [
        _row(name, kind, _with_strategy(config, changes, world_size), world_size)
        for name, kind, changes in _candidates(world_size, config.model.num_local_experts is not None)
    ]


def _candidates(world: int, with_experts: bool) -> list[tuple[str, str, dict[str, Any]]]:
    """Return name, kind and [strategy] fields of each strategy to compare."""
    candidates: list[tuple[str, str, dict[str, Any]]] = [
        (entry.title, name, {"name": name}) for name, entry in DATA_STRATEGIES.items()
    ]
    if world == 1:
        return candidates[:1]
    if world >= 4 and world % 2 == 0:
        candidates.append(("zero3, hybrid", "hybrid", {"name": "zero3", "shard": world // 2}))
    for name, entry in AXES.items():
        if name == "pp":
            candidates += [(f"{entry.title}, {order}", name, {"pp": world, "schedule": order}) for order in SCHEDULES]
        elif name != "ep" or with_experts:
            candidates.append((entry.title, name, {name: world}))
    if world % 2 == 0 and world >= 4:
        candidates += [
            ("ddp x tensor", "ddp+tp", {"tp": 2}),
            ("zero3 x tensor", "zero3+tp", {"name": "zero3", "tp": 2}),
            ("ddp x pipeline", "ddp+pp", {"pp": 2}),
            ("tensor x pipeline", "tp+pp", {"tp": 2, "pp": world // 2}),
            ("ddp x context", "ddp+cp", {"cp": 2}),
        ]
    if world % 4 == 0 and world >= 8:
        candidates.append(("ddp x tensor x pipeline", "ddp+tp+pp", {"tp": 2, "pp": 2}))
    return candidates


def _with_strategy(config: RunConfig, changes: dict[str, Any], world: int) -> RunConfig:
    """Return `config` with another strategy; a pipeline with too few micro-batches gets more per batch."""
    names = ("reduction", "bucket_mb", "sequence_parallel", "inner_steps")
    kept = {name: getattr(config.strategy, name) for name in names}
    strategy = StrategyConfig(**kept, **changes)
    if strategy.pp == 1 or config.train.grad_accum >= strategy.pp:
        return replace(config, strategy=strategy)
    own = config.train.global_batch_size // max(1, strategy.dp_size(world))
    most = max((m for m in range(strategy.pp, min(own, 4 * strategy.pp) + 1) if own % m == 0), default=None)
    micros = config.train.grad_accum if most is None else most
    return replace(config, strategy=strategy, train=replace(config.train, grad_accum=micros))


def _row(name: str, kind: str, config: RunConfig, world: int) -> Row:
    problems = config.world_problems(world)
    strategy, share = config.strategy, RankShare(config, world)
    row = Row(name, kind, share.sizes, share.num_micro, problems)
    if problems:
        return row
    # Ranks differ by their stage; other differences are only in the norms' gradients.
    ranks = range(0, world, world // strategy.pp)
    traffic = [step_traffic(config, world, rank) for rank in ranks]
    return replace(
        row,
        memory=max((rank_memory(config, world, rank) for rank in ranks), key=lambda memory: memory.total),
        sent_bytes=max(sum(flow.wire_bytes for flow in flows) for flows in traffic) / _round_steps(strategy),
        num_messages=max(sum(flow.num_messages for flow in flows if flow.op != "recv") for flows in traffic),
        bubble=expected_bubble(config),
    )


def _round_steps(strategy: StrategyConfig) -> int:
    """Return the number of steps per synchronization of the data ranks."""
    return strategy.inner_steps if strategy.entry.trains_locally else 1


def expected_bubble(config: RunConfig) -> float | None:
    """Return the bubble of a run's pipeline, as a fraction of its forward and backward time; None without a pipeline.

    Assumes: the gradients of inputs and of weights each take as long as the forward pass; sending takes no time.
    """
    strategy = config.strategy
    if strategy.pp == 1:
        return None
    return bubble_formula(strategy.schedule, strategy.pp, config.train.grad_accum, strategy.virtual_stages)
