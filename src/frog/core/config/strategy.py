"""Distribution of the work over the world, and the rules for combinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Literal

from frog.core.config.model import ModelConfig
from frog.core.config.own_strategy import own_entry
from frog.core.config.strategies import AXES, DATA_STRATEGIES, DataStrategyEntry, StrategyEntry, or_list
from frog.core.schema import shortened
from frog.core.units import Unit

ZERO_BUBBLE_TORCH = (2, 13)
"""The first torch version that is known to run its zero-bubble schedule on Frog's model. In 2.9 and 2.11 the second
half of a split backward pass does not find the nodes of functions written in Python (pytorch#166577)."""

REPLICATE_TORCH = (2, 11)
"""The first torch version that is known to take the mesh of the data ranks in FSDP2's `replicate`; 2.9 does not."""


@dataclass(frozen=True)
class StrategyConfig:
    """[strategy]: how the work is distributed over the world. The ranks that tp, pp and cp leave are data-parallel"""

    name: str = "ddp"
    """How the data-parallel ranks keep their state: a key of DATA_STRATEGIES."""
    implementation: Literal["frog", "torch", "deepspeed"] = "frog"
    """The code that implements the strategy: Frog's own, torch's, or DeepSpeed's."""
    tp: Annotated[int, Unit("ranks")] = 1
    """Tensor parallelism: number of ranks that split each matrix of a layer."""
    pp: Annotated[int, Unit("ranks")] = 1
    """Pipeline parallelism: number of ranks that share the layers."""
    cp: Annotated[int, Unit("ranks")] = 1
    """Context parallelism: number of ranks that split the positions of a sequence."""
    ep: Annotated[int, Unit("ranks")] = 1
    """Expert parallelism: number of neighboring dp ranks that share each layer's experts."""
    shard: Annotated[int | None, Unit("ranks")] = None
    """Hybrid sharding: number of neighboring data ranks over which zero shards; None means all of them."""
    reduction: Literal["naive", "bucketed", "overlapped"] = "bucketed"
    """ddp: one all-reduce per parameter; one per bucket after the backward pass; one per bucket during it."""
    bucket_mb: Annotated[float, Unit("MB")] = 25.0
    """ddp: size of the gradient bucket of one all-reduce."""
    compression: Literal["off", "fp16", "bf16", "powersgd", "int8"] = "off"
    """Compression of the traffic. Frog's ddp and diloco: int8. torch's ddp: its hooks fp16, bf16 and powersgd."""
    inner_steps: Annotated[int, Unit("steps")] = 50
    """diloco: H, the steps of a round, which each rank takes independently."""
    outer_learning_rate: Annotated[float, Unit()] = 0.7
    """diloco: learning rate of the outer optimizer, at the end of a round."""
    outer_momentum: Annotated[float, Unit()] = 0.9
    """diloco: Nesterov momentum of the outer optimizer; 0 turns it off."""
    sequence_parallel: bool = True
    """tp: split the inputs of the norms over the sequence."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble"] = "1f1b"
    """pp: order of the train.grad_accum micro-batches."""
    virtual_stages: Annotated[int, Unit("stages")] = 2
    """pp, interleaved: number of stages per rank."""
    deepspeed_file: str | None = None
    """deepspeed: its JSON file, relative to the current directory; None uses config/deepspeed_<name>.json."""
    file: str | None = None
    """A strategy of your own, in place of `name`: a Python file, relative to the current directory."""

    @property
    def entry(self) -> DataStrategyEntry:
        """The entry of the data strategy; `problems` reports an unknown name."""
        return DATA_STRATEGIES[self.name] if self.file is None else own_entry(self.file)

    def problems(self) -> list[str]:
        """Return a problem if the strategy's name is unknown."""
        if self.name in DATA_STRATEGIES:
            return []
        return [f"strategy.name={shortened(repr(self.name))}: must be {or_list(map(repr, DATA_STRATEGIES))}"]

    def dp_size(self, world_size: int) -> int:
        """Number of data-parallel ranks in a world of this size; `strategy_problems` explains a bad size."""
        return world_size // (self.tp * self.pp * self.cp)


def strategy_problems(
    strategy: StrategyConfig, model: ModelConfig, sequence_length: int, grad_accum: int, world_size: int
) -> list[str]:
    """Return every rule that a strategy breaks with this model, sequence and world, with both numbers and the rule."""
    if strategy.file is not None:
        return _own_problems(strategy)
    ranks = strategy.tp * strategy.pp * strategy.cp
    if world_size % ranks:
        return [
            f"strategy.pp {strategy.pp} x strategy.cp {strategy.cp} x strategy.tp {strategy.tp} = {ranks} ranks do not "
            f"divide the world of {world_size}: the remaining factor is the data-parallel axis"
        ]
    problems = _size_problems(strategy, model, sequence_length, grad_accum)
    problems += _sharding_problems(strategy, world_size // (strategy.tp * strategy.pp))
    problems += _expert_problems(strategy, model, strategy.dp_size(world_size))
    problems += _apart_problems(strategy, model)
    problems += _replicate_problems(strategy, strategy.dp_size(world_size))
    return problems + implementation_problems(strategy, model, grad_accum)


def _own_problems(strategy: StrategyConfig) -> list[str]:
    """Return each setting with which a strategy of one's own cannot be combined."""
    settings = {axis: size for axis in AXES if (size := getattr(strategy, axis)) > 1}
    others = {"name": "ddp", "implementation": "frog", "shard": None, "compression": "off"}
    settings |= {name: value for name, usual in others.items() if (value := getattr(strategy, name)) != usual}
    return [
        f"strategy.file={strategy.file!r} with strategy.{name}={value!r}: the file is the whole strategy, over all "
        "ranks of the world; remove one of the two"
        for name, value in settings.items()
    ]


def _size_problems(strategy: StrategyConfig, model: ModelConfig, sequence_length: int, grad_accum: int) -> list[str]:
    tp, pp, cp = strategy.tp, strategy.pp, strategy.cp
    split = {
        "num_attention_heads": (model.num_attention_heads, "each rank takes whole heads"),
        "num_key_value_heads": (model.num_key_value_heads, "each rank takes whole key/value heads"),
        "intermediate_size": (model.intermediate_size, "each rank takes the same number of FFN columns"),
        "vocab_size": (model.vocab_size, "each rank takes the same number of embedding rows"),
    }
    if strategy.sequence_parallel:
        split["data.sequence_length"] = (sequence_length, "sequence parallelism splits the positions evenly")
    problems = [
        f"{name}={size} is not a multiple of strategy.tp={tp}: {rule}"
        for name, (size, rule) in split.items()
        if size % tp
    ]
    if cp > 1 and sequence_length % (2 * cp):
        problems.append(
            f"data.sequence_length={sequence_length} is not a multiple of 2 x strategy.cp={2 * cp}: each rank takes "
            "one chunk from the sequence's beginning and one from its end"
        )
    stages = pp * (strategy.virtual_stages if strategy.schedule == "interleaved" and pp > 1 else 1)
    if model.num_hidden_layers < stages:
        problems.append(f"num_hidden_layers={model.num_hidden_layers} is less than {stages} stages: each needs a layer")
    if pp > 1 and grad_accum < pp:
        problems.append(
            f"train.grad_accum={grad_accum} micro-batches are fewer than strategy.pp={pp} stages: "
            "some stages would never work at the same time as others"
        )
    elif pp > 1 and strategy.schedule == "interleaved" and grad_accum % pp:
        problems.append(f"train.grad_accum={grad_accum} is not a multiple of strategy.pp={pp}: interleaving needs that")
    return problems


def _sharding_problems(strategy: StrategyConfig, data_size: int) -> list[str]:
    problems = []
    if strategy.shard is not None:
        if not strategy.entry.splits:
            able = or_list(name for name, entry in DATA_STRATEGIES.items() if entry.splits)
            problems.append(
                f"strategy.shard={strategy.shard}: {strategy.name} shards nothing; hybrid sharding needs {able}"
            )
        if data_size % strategy.shard:
            problems.append(
                f"strategy.shard={strategy.shard} does not divide the {data_size} data ranks: "
                "they must form groups of that size"
            )
    if strategy.pp > 1 and strategy.entry.sends_every_micro_batch:
        able = or_list(name for name, entry in DATA_STRATEGIES.items() if not entry.sends_every_micro_batch)
        problems.append(
            f"strategy.name={strategy.name!r} with strategy.pp={strategy.pp}: it would reduce or gather again in every "
            f"micro-batch of every stage; use {able}"
        )
    return problems + _compression_problems(strategy)


def _compression_problems(strategy: StrategyConfig) -> list[str]:
    int8 = strategy.compression == "int8"
    able = {("ddp", "frog"), ("diloco", "frog")} if int8 else {("ddp", "torch")}
    if strategy.compression == "off":
        return []
    by = f"strategy.compression={strategy.compression!r}"
    if (strategy.name, strategy.implementation) not in able:
        what = "a setting of Frog's own ddp and diloco" if int8 else "a communication hook of torch's ddp"
        return [
            f"{by}: {what}; here strategy.name={strategy.name!r} and "
            f"strategy.implementation={strategy.implementation!r}"
        ]
    problems = []
    if int8 and strategy.name == "ddp" and strategy.reduction != "bucketed":
        problems.append(
            f"{by} with strategy.reduction={strategy.reduction!r}: the whole gradient is quantized together, after the "
            'backward pass; leave it at "bucketed"'
        )
    problems += [
        f"{by} with strategy.{axis}={size}: error feedback is kept only for ranks that hold the whole model"
        for axis in AXES
        if int8 and not strategy.entry.trains_locally and (size := getattr(strategy, axis)) > 1
    ]
    return problems


def _apart_problems(strategy: StrategyConfig, model: ModelConfig) -> list[str]:
    if not strategy.entry.trains_locally:
        return []
    problems = [
        f"strategy.name={strategy.name!r} with strategy.{axis}={size}: each replica must be one rank, with the "
        "whole model and whole sequences"
        for axis in AXES
        if (size := getattr(strategy, axis)) > 1
    ]
    if model.num_local_experts is not None:
        problems.append(
            f"strategy.name={strategy.name!r} with num_local_experts={model.num_local_experts}: the routers are "
            "balanced over all data ranks in every micro-batch, but replicas synchronize once per round"
        )
    return problems


def _expert_problems(strategy: StrategyConfig, model: ModelConfig, dp_size: int) -> list[str]:
    ep, experts = strategy.ep, model.num_local_experts
    if experts is None:
        return [f"strategy.ep={ep}: this model has no experts to distribute (num_local_experts)"] if ep > 1 else []
    problems = []
    if dp_size % ep:
        problems.append(f"strategy.ep={ep} does not divide the {dp_size} dp ranks: they must form groups of that size")
    if experts % ep:
        problems.append(
            f"num_local_experts={experts} is not a multiple of strategy.ep={ep}: each rank needs the same number"
        )
    if strategy.tp > 1:
        problems.append(
            f"strategy.tp={strategy.tp} with num_local_experts={experts}: tp does not split experts; "
            "distribute them with strategy.ep"
        )
    return problems


def implementation_problems(strategy: StrategyConfig, model: ModelConfig, grad_accum: int) -> list[str]:
    """Return the parts of a strategy that its implementation does not support."""
    axes = {name: size for name in AXES if (size := getattr(strategy, name)) > 1}
    parts: dict[str, StrategyEntry] = {f"strategy.name={strategy.name!r}": strategy.entry}
    parts |= {f"strategy.{axis}={size}": AXES[axis] for axis, size in axes.items()}
    problems = [
        f"{field} with strategy.implementation={strategy.implementation!r}: it does not implement this strategy; "
        f"{or_list(entry.modules)} does"
        for field, entry in parts.items()
        if strategy.implementation not in entry.modules
    ]
    if strategy.implementation == "deepspeed" and strategy.shard is not None:
        problems.append(
            f"strategy.shard={strategy.shard} with strategy.implementation='deepspeed': it splits over all data ranks"
        )
    return problems + (_torch_problems(strategy, model, grad_accum, axes) if strategy.implementation == "torch" else [])


def _torch_problems(
    strategy: StrategyConfig, model: ModelConfig, grad_accum: int, axes: Mapping[str, int]
) -> list[str]:
    by = "strategy.implementation='torch'"
    problems = []
    for axis in ("tp", "pp"):
        if strategy.name == "zero1" and axis in axes:
            problems.append(
                f"strategy.name='zero1' with strategy.{axis}={axes[axis]} and {by}: ZeroRedundancyOptimizer does not "
                "support the DTensors that these need"
            )
        if strategy.compression != "off" and axis in axes:
            problems.append(
                f"strategy.compression={strategy.compression!r} with strategy.{axis}={axes[axis]}: the hooks are "
                "DistributedDataParallel's, which does not support DTensors"
            )
    if strategy.pp > 1 and model.num_local_experts is not None:
        problems.append(
            f"strategy.pp={strategy.pp} with num_local_experts={model.num_local_experts} and {by}: its stages pass "
            "hidden states on, but not the routers' loss"
        )
    if strategy.pp > 1 and strategy.schedule == "zero_bubble":
        problems += _zero_bubble_problems(strategy.pp, grad_accum)
    return problems


def _replicate_problems(strategy: StrategyConfig, dp_size: int) -> list[str]:
    """Return the rule of FSDP2's `replicate` that this run breaks with an old torch."""
    axes = [f"strategy.{axis}={size}" for axis in ("tp", "pp") if (size := getattr(strategy, axis)) > 1]
    if strategy.implementation != "torch" or strategy.name != "ddp" or dp_size == 1 or not axes:
        return []
    if _torch_version() >= REPLICATE_TORCH:
        return []
    return [
        f"strategy.name='ddp' with {' and '.join(axes)}, {dp_size} data ranks and strategy.implementation='torch': "
        f"`replicate` of torch {version('torch')} does not take the mesh of the data ranks; use torch "
        f"{'.'.join(map(str, REPLICATE_TORCH))} or later, or strategy.implementation='frog'"
    ]


def _zero_bubble_problems(pp: int, grad_accum: int) -> list[str]:
    """Return the rules of torch's zero-bubble schedule that this run breaks."""
    problems = []
    if _torch_version() < ZERO_BUBBLE_TORCH:
        needed = ".".join(map(str, ZERO_BUBBLE_TORCH))
        problems.append(
            f"strategy.schedule='zero_bubble' with strategy.implementation='torch': torch {version('torch')} cannot "
            f"split the backward pass of Frog's model in two; use torch {needed} or later, strategy.schedule='1f1b' or "
            "strategy.implementation='frog'"
        )
    rounds = max(1, grad_accum // pp)
    if grad_accum % rounds:
        problems.append(
            f"train.grad_accum={grad_accum} is not a multiple of the {rounds} rounds into which torch's zero_bubble "
            f"splits it with strategy.pp={pp}; a multiple of strategy.pp always works"
        )
    return problems


def _torch_version() -> tuple[int, ...]:
    return tuple(map(int, version("torch").split(".")[:2]))
