"""The layout of a run: its model and batch, divided by its strategy, as one rank of the world sees them.

A run's memory and traffic, its measured phases and its predicted step derive from it. `estimate/gpu_layout.py` has the
layout of a model on a cluster. Sizes are numbers of elements unless their name says bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from frog.core.config import ModelConfig, RunConfig
from frog.core.config.model import ROOT, Parameter
from frog.train.parallel.schedules.schedule import stage_layers

FLOAT_BYTES = 4
"""Parameters, gradients and moments are float32, whatever the precision of the products."""


@dataclass(frozen=True)
class UnitSizes:
    """The sizes of a group of parameters: a layer, or the root (embedding, last norm, head)."""

    matrices: tuple[int, ...]
    """Elements of each matrix, in the model's order."""
    vectors: tuple[int, ...]

    @property
    def numel(self) -> int:
        return sum(self.matrices) + sum(self.vectors)


def join(units: Iterable[UnitSizes]) -> UnitSizes:
    """Join several units into one."""
    units = list(units)
    return UnitSizes(
        tuple(size for unit in units for size in unit.matrices), tuple(size for unit in units for size in unit.vectors)
    )


def unit(model: ModelConfig, rows: Iterable[Parameter], tp: int = 1, ep: int = 1) -> UnitSizes:
    """Return one rank's sizes of some rows of the table of parameters, divided by `tp` and `ep`."""
    sizes = [
        (row, row.numel(model) // (ep if row.kind == "expert" else 1 if row.split_dim is None else tp)) for row in rows
    ]
    return UnitSizes(
        tuple(size for row, size in sizes if len(row.dims) > 1),
        tuple(size for row, size in sizes if len(row.dims) == 1),
    )


def layer_unit(model: ModelConfig, tp: int = 1, ep: int = 1) -> UnitSizes:
    """Return one layer's parameters on one of `tp` ranks, with its share of the experts."""
    return unit(model, model.layer_parameters(), tp, ep)


def root_unit(model: ModelConfig, tp: int = 1, *, first: bool = True, last: bool = True) -> UnitSizes:
    """Return the parameters outside the layers, on a rank of the first stage, the last, both or neither.

    A rank with both has a tied embedding once.
    """
    held = {"embedding": first, "norm": last, "head": last and not (first and model.tie_word_embeddings)}
    return unit(model, (row for row in ROOT if held[row.kind]), tp)


@dataclass(frozen=True)
class Layout:
    """A run in a world, seen from one rank. Assumes that the run is valid; `plan/strategies.py` reports why not."""

    config: RunConfig
    world_size: int
    rank: int = 0

    @property
    def model(self) -> ModelConfig:
        return self.config.model

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of each axis, from the slowest to the fastest."""
        strategy = self.config.strategy
        return {"pp": strategy.pp, "dp": strategy.dp_size(self.world_size), "cp": strategy.cp, "tp": strategy.tp}

    @cached_property
    def place(self) -> dict[str, int]:
        """This rank's coordinate on each axis."""
        found, rest = {}, self.rank
        for name, size in reversed(self.sizes.items()):
            rest, found[name] = divmod(rest, size)
        return found

    @property
    def data(self) -> int:
        """Number of ranks that average one gradient: those of dp and cp together."""
        return self.sizes["dp"] * self.sizes["cp"]

    @property
    def data_axis(self) -> str:
        return "dp" if self.sizes["cp"] == 1 else "data"

    @property
    def data_rank(self) -> int:
        return self.place["dp"] * self.sizes["cp"] + self.place["cp"]

    @property
    def shard(self) -> int:
        """Number of ranks over which zero shards."""
        return self.config.strategy.shard or self.data

    @property
    def shard_axis(self) -> str:
        return self.data_axis if self.shard == self.data else "shard"

    @property
    def replicate(self) -> int:
        return self.data // self.shard

    # ---- the batch ---------------------------------------------------------------------------------------------------

    @property
    def num_micro(self) -> int:
        return self.config.train.grad_accum

    @property
    def micro_batch(self) -> int:
        """B: sequences of one forward pass."""
        return self.config.micro_batch_size(self.sizes["dp"])

    @property
    def length(self) -> int:
        """T: this rank's tokens of a sequence, after context parallelism."""
        return self.config.data.sequence_length // self.sizes["cp"]

    @property
    def num_tokens(self) -> int:
        """N: tokens of one forward pass."""
        return self.micro_batch * self.length

    @property
    def stream_bytes(self) -> int:
        """x: the full residual stream between two layers: B*T*D numbers."""
        return FLOAT_BYTES * self.num_tokens * self.model.hidden_size

    @property
    def stream_split(self) -> int:
        """Number of ranks over which sequence parallelism splits the residual stream."""
        return self.sizes["tp"] if self.config.strategy.sequence_parallel else 1

    # ---- the model ---------------------------------------------------------------------------------------------------

    @property
    def is_first_stage(self) -> bool:
        return self.place["pp"] == 0

    @property
    def is_last_stage(self) -> bool:
        return self.place["pp"] == self.sizes["pp"] - 1

    @property
    def virtual_stages(self) -> int:
        """Stages on each rank."""
        strategy = self.config.strategy
        return strategy.virtual_stages if strategy.pp > 1 and strategy.schedule == "interleaved" else 1

    @property
    def num_stages(self) -> int:
        return self.sizes["pp"] * self.virtual_stages

    @cached_property
    def stages(self) -> dict[int, int]:
        """The number of layers in each stage of this rank."""
        layers = stage_layers(self.model.num_hidden_layers, self.num_stages)
        return {stage: len(layers[stage]) for stage in range(self.place["pp"], self.num_stages, self.sizes["pp"])}

    @property
    def num_layers(self) -> int:
        """The number of layers of this rank."""
        return sum(self.stages.values())

    @cached_property
    def layers(self) -> list[UnitSizes]:
        return [layer_unit(self.model, self.sizes["tp"], self.config.strategy.ep)] * self.num_layers

    def layers_of(self, experts: bool) -> list[UnitSizes]:
        """Return the experts of each layer of this rank, or the rest of each layer."""
        rows = [row for row in self.model.layer_parameters() if (row.kind == "expert") == experts]
        return [unit(self.model, rows, self.sizes["tp"], self.config.strategy.ep)] * self.num_layers

    @cached_property
    def root(self) -> UnitSizes:
        return root_unit(self.model, self.sizes["tp"], first=self.is_first_stage, last=self.is_last_stage)

    @cached_property
    def whole(self) -> UnitSizes:
        """All parameters of this rank before data parallelism shards them."""
        return join([self.root, *self.layers])

    @property
    def parameter_bytes(self) -> int:
        """P: bytes of the parameters with which one data rank computes."""
        return FLOAT_BYTES * self.whole.numel

    @property
    def partition_bytes(self) -> float:
        """The bytes of P that a rank keeps if zero shards it; experts split by `ep` are sharded over fewer ranks."""
        if self.config.strategy.ep == 1:
            return self.parameter_bytes / self.shard
        experts = FLOAT_BYTES * join(self.layers_of(experts=True)).numel
        return (self.parameter_bytes - experts) / self.shard + experts / self.num_expert_copies

    @property
    def kept_bytes(self) -> float:
        """Bytes that a strategy keeps in addition to parameters, gradients and moments.

        With separate replicas: the weights of the round's start and the outer momentum, 2 P. In 8 bits: both rounding
        errors, P and P/n.
        """
        strategy, whole = self.config.strategy, self.parameter_bytes
        rounded = strategy.compression == "int8" and self.data > 1
        return 2 * whole * strategy.entry.apart + (whole + whole / self.data) * rounded

    @property
    def num_expert_copies(self) -> int:
        """Number of ranks that hold the same experts."""
        return self.data // self.config.strategy.ep
