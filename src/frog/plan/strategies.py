"""The strategies side by side, for one model and world: memory, traffic, bubble, and when to use which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from frog.config import RunConfig, StrategyConfig
from frog.parallel.simulation import bubble_formula
from frog.plan.layout import Layout
from frog.plan.memory import Memory, step_memory
from frog.plan.traffic import step_traffic

USES = {
    "ddp": "the model, its gradients and Adam's two moments fit on one rank: nothing is simpler",
    "zero1": "Adam's moments no longer fit: they are shared out, for the traffic of ddp",
    "zero2": "the gradients no longer fit either; they travel in every micro-batch, so keep grad_accum low",
    "zero3": "the parameters no longer fit either; up to 1.5 times the traffic of ddp, for each micro-batch",
    "hybrid": "zero3 where links between nodes are slow: share out within a node, repeat across nodes",
    "tp": "a single layer is too big or too slow; it talks in every layer, so keep it within a node",
    "pp": "the model is deep and links are slow: little is sent, but ranks wait while the pipeline fills and drains",
    "cp": "the sequence is too long for one rank's activations",
    "ep": "the FFN is a mixture of experts whose weights no longer fit",
}
"""When to use each; a product is used where the reasons of its parts meet."""


DOES = {
    "ddp": "Every data rank has the whole model and its own samples; gradients are averaged.",
    "zero1": "Every data rank keeps its share of Adam's state, and updates that share of the parameters for all.",
    "zero2": "Every data rank keeps its share of the gradients and of Adam's state.",
    "zero3": "Every data rank keeps its share of the parameters too; a layer is put together while it is at work.",
    "hybrid": "Rows of neighbouring data ranks each hold one copy between them; the rows repeat it.",
    "tp": "Every matrix is split over the tp ranks, which work on the same samples.",
    "pp": "The layers are cut into stages, through which micro-batches flow.",
    "cp": "Every sequence is split over the cp ranks; keys and values go round in a ring, gradients are averaged.",
    "ep": "The experts of each layer are shared out over neighbouring data ranks; tokens travel to them.",
}
"""What each strategy is, in a sentence."""


def describe(strategy: StrategyConfig, world_size: int) -> list[str]:
    """What a run's strategies are, in sentences."""
    axes = [name for name in ("tp", "pp", "cp", "ep") if getattr(strategy, name) > 1]
    # Along cp alone ddp does nothing that the ring's own sentence does not say.
    has_data = strategy.dp_size(world_size) > 1 or (strategy.cp > 1 and strategy.name != "ddp")
    data = [strategy.name, *(["hybrid"] if strategy.shard else [])] if has_data else []
    return [DOES[name] for name in data + axes]


@dataclass(frozen=True)
class Row:
    """One strategy in one world; without `memory` it is not possible, and `problems` says why."""

    name: str
    kind: str
    """Key of USES; of a product the keys with a + in between."""
    mesh: dict[str, int]
    num_micro: int
    problems: list[str]
    memory: Memory | None = None
    """Of the rank that holds most."""
    sent_bytes: float = 0.0
    """In one step, by the rank that sends most."""
    num_messages: int = 0
    bubble: float | None = None
    """The pipeline's, as a share of the time; None without a pipeline."""

    @property
    def use(self) -> str:
        """When to use it."""
        return "; ".join(USES[kind] for kind in self.kind.split("+"))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; memory and traffic in bytes."""
        memory = None if self.memory is None else {**vars(self.memory), "total": self.memory.total}
        return {**vars(self), "memory": memory, "use": self.use}


def compare_strategies(config: RunConfig, world_size: int) -> list[Row]:
    """Every strategy and product that a world of this size is big enough for, for the model and batch of `config`."""
    return [
        _row(name, kind, _with_strategy(config, changes, world_size), world_size)
        for name, kind, changes in _candidates(world_size, config.model.num_local_experts is not None)
    ]


def _candidates(world: int, with_experts: bool) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, kind and [strategy] fields of what to compare."""
    found: list[tuple[str, str, dict[str, Any]]] = [("ddp", "ddp", {})]
    if world == 1:
        return found
    found += [(name, name, {"name": name}) for name in ("zero1", "zero2", "zero3")]
    if world >= 4 and world % 2 == 0:
        found.append(("zero3, hybrid", "hybrid", {"name": "zero3", "shard": world // 2}))
    found.append(("tensor", "tp", {"tp": world}))
    schedules = ("gpipe", "1f1b", "interleaved", "zero_bubble")
    found += [(f"pipeline, {name}", "pp", {"pp": world, "schedule": name}) for name in schedules]
    found.append(("context", "cp", {"cp": world}))
    if with_experts:
        found.append(("expert", "ep", {"ep": world}))
    if world % 2 == 0 and world >= 4:
        found += [
            ("ddp x tensor", "ddp+tp", {"tp": 2}),
            ("zero3 x tensor", "zero3+tp", {"name": "zero3", "tp": 2}),
            ("ddp x pipeline", "ddp+pp", {"pp": 2}),
            ("tensor x pipeline", "tp+pp", {"tp": 2, "pp": world // 2}),
            ("ddp x context", "ddp+cp", {"cp": 2}),
        ]
    if world % 4 == 0 and world >= 8:
        found.append(("ddp x tensor x pipeline", "ddp+tp+pp", {"tp": 2, "pp": 2}))
    return found


def _with_strategy(config: RunConfig, changes: dict[str, Any], world: int) -> RunConfig:
    """`config` under another strategy; a pipeline without enough micro-batches gets more, of the same global batch."""
    kept = {name: getattr(config.strategy, name) for name in ("reduction", "bucket_mb", "sequence_parallel")}
    strategy = StrategyConfig(**kept, **changes)
    if strategy.pp == 1 or config.train.grad_accum >= strategy.pp:
        return replace(config, strategy=strategy)
    own = config.train.global_batch_size // max(1, strategy.dp_size(world))
    most = max((m for m in range(strategy.pp, min(own, 4 * strategy.pp) + 1) if own % m == 0), default=None)
    micros = config.train.grad_accum if most is None else most
    return replace(config, strategy=strategy, train=replace(config.train, grad_accum=micros))


def _row(name: str, kind: str, config: RunConfig, world: int) -> Row:
    problems = config.world_problems(world)
    strategy, layout = config.strategy, Layout(config, world)
    row = Row(name, kind, layout.sizes, layout.num_micro, problems)
    if problems:
        return row
    # Ranks differ by their stage; what little they differ by beside that is in the norms' gradients.
    ranks = range(0, world, world // strategy.pp)
    traffic = [step_traffic(config, world, rank) for rank in ranks]
    return replace(
        row,
        memory=max((step_memory(config, world, rank) for rank in ranks), key=lambda memory: memory.total),
        sent_bytes=max(sum(flow.wire_bytes for flow in flows) for flows in traffic),
        num_messages=max(sum(flow.num_messages for flow in flows if flow.op != "recv") for flows in traffic),
        bubble=expected_bubble(config),
    )


def expected_bubble(config: RunConfig) -> float | None:
    """The bubble of a run's pipeline, as a share of the time of its forward and backward passes; None without one.

    Assumes: the gradients of inputs and of weights take as long as the forward pass each; sending takes no time.
    """
    strategy = config.strategy
    if strategy.pp == 1:
        return None
    return bubble_formula(strategy.schedule, strategy.pp, config.train.grad_accum, strategy.virtual_stages)
