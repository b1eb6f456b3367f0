"""The strategies, one entry each: name, sharded state, communication, advice and implementation.

The tables hold everything that Frog knows of a strategy without running it, and need no torch. The run file's checks,
the memory and traffic formulas, `frog strategies`, the report and the proof's matrix read them. To add a strategy, add
an entry here, a file in `frog/parallel` and a row in docs/train/strategies.md: tests report missing parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

WHOLE_WORLD = "all"
"""In a proof's fields: the size of the world."""

PROOF_BUCKET_MB = 0.02
"""Bucket size that splits the small model of the proofs into several buckets, so that proofs cover their borders."""


@dataclass(frozen=True)
class StrategyEntry:
    """The fields that every strategy has."""

    name: str
    """For data parallelism the value of `strategy.name`; otherwise the field that sets the number of ranks."""
    title: str
    """In tables."""
    summary: str
    """One-sentence description."""
    use: str
    """When to use it."""
    modules: Mapping[str, str]
    """The file whose `build` implements it, by `strategy.implementation`."""
    proofs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The cases to prove, if there are several: [strategy] fields by the case's name."""


@dataclass(frozen=True)
class Transfer:
    """A collective of the data ranks in every step or round: how often it runs, and in how many messages.

    `pieces` are the buckets of `strategy.reduction`; one message; one for each layer and one for the rest; or
    one for each layer but the last, where the last layer and the rest are not sent.
    """

    op: Literal["all_reduce", "reduce_scatter", "all_gather"]
    what: Literal["gradients", "parameters", "differences"]
    every: Literal["step", "micro-batch", "round"]
    pieces: Literal["buckets", "one", "layers", "layers but the last"]


@dataclass(frozen=True)
class DataStrategyEntry(StrategyEntry):
    """A way to distribute the parameters, the gradients and the optimizer's state over the data ranks."""

    splits: frozenset[Literal["optimizer", "gradients", "parameters"]] = frozenset()
    """State of which each rank keeps only its partition. Every rank has a full copy of everything else."""
    transfers: tuple[Transfer, ...] = ()
    trains_locally: bool = False
    """True if the data ranks train separately, with their own weights and moments, and synchronize once per round."""
    has_formulas: bool = True
    """True if `splits` and `transfers` are known: the memory and the traffic follow from them."""

    @property
    def sends_every_micro_batch(self) -> bool:
        """True if gradient accumulation saves no traffic."""
        return any(transfer.every == "micro-batch" for transfer in self.transfers)

    @property
    def zero_stage(self) -> int:
        """ZeRO's number for the sharded state."""
        return len(self.splits)


def _by_name(*entries: DataStrategyEntry) -> dict[str, DataStrategyEntry]:
    return {entry.name: entry for entry in entries}


_REDUCED_BY_LAYER = Transfer("reduce_scatter", "gradients", "micro-batch", "layers")

DATA_STRATEGIES = _by_name(
    # 2(n-1)/n P: n data ranks, P bytes of parameters. Source: Li et al. 2020, section 3.
    DataStrategyEntry(
        name="ddp",
        title="ddp",
        summary="Every data rank has the whole model and its own samples; gradients are averaged.",
        use="the model, its gradients and Adam's two moments fit on one rank: the simplest strategy",
        modules={"frog": "frog.train.parallel.data.ddp", "torch": "frog.train.parallel.torch_impl.torch_ddp"},
        transfers=(Transfer("all_reduce", "gradients", "step", "buckets"),),
        proofs={
            "ddp-naive": {"reduction": "naive"},
            "ddp-bucketed": {"reduction": "bucketed", "bucket_mb": PROOF_BUCKET_MB},
            "ddp-overlapped": {"reduction": "overlapped", "bucket_mb": PROOF_BUCKET_MB},
        },
    ),
    # 2(n-1)/n P, as ddp. Source: Rajbhandari et al. 2020, section 7.1.
    DataStrategyEntry(
        name="zero1",
        title="zero1",
        summary="Every data rank keeps one partition of Adam's state, and updates those parameters for all ranks.",
        use="Adam's moments no longer fit: they are partitioned, with the same traffic as ddp",
        modules={
            "frog": "frog.train.parallel.data.zero1",
            "torch": "frog.train.parallel.torch_impl.torch_ddp",
            "deepspeed": "frog.train.parallel.torch_impl.deepspeed",
        },
        splits=frozenset({"optimizer"}),
        transfers=(
            Transfer("reduce_scatter", "gradients", "step", "one"),
            Transfer("all_gather", "parameters", "step", "one"),
        ),
    ),
    # (A + 1)(n-1)/n P with A micro-batches. Source: Rajbhandari et al. 2020, section 7.1, where A is 1.
    DataStrategyEntry(
        name="zero2",
        title="zero2",
        summary="Every data rank keeps one partition of the gradients and of Adam's state.",
        use="the gradients no longer fit either; they are sent in every micro-batch, so keep grad_accum low",
        modules={
            "frog": "frog.train.parallel.data.zero2",
            "torch": "frog.train.parallel.torch_impl.fsdp",
            "deepspeed": "frog.train.parallel.torch_impl.deepspeed",
        },
        splits=frozenset({"optimizer", "gradients"}),
        transfers=(_REDUCED_BY_LAYER, Transfer("all_gather", "parameters", "step", "layers")),
    ),
    # A (3P - R)(n-1)/n: R, the last layer and the root unit, stays gathered from forward to backward. Source:
    # Rajbhandari et al. 2020, section 7.2, which has 3P: nothing stays.
    DataStrategyEntry(
        name="zero3",
        title="zero3",
        summary="Every data rank keeps one partition of the parameters too; a layer is gathered only while in use.",
        use="the parameters no longer fit either; up to 1.5 times the traffic of ddp, for each micro-batch",
        modules={
            "frog": "frog.train.parallel.data.zero3",
            "torch": "frog.train.parallel.torch_impl.fsdp",
            "deepspeed": "frog.train.parallel.torch_impl.deepspeed",
        },
        splits=frozenset({"optimizer", "gradients", "parameters"}),
        transfers=(
            Transfer("all_gather", "parameters", "micro-batch", "layers"),
            Transfer("all_gather", "parameters", "micro-batch", "layers but the last"),
            _REDUCED_BY_LAYER,
        ),
    ),
    # 2(n-1)/n P in every H-th step, in 8 bits a quarter of it. Source: Douillard et al. 2023, section 2.
    DataStrategyEntry(
        name="diloco",
        title="diloco",
        summary="Every data rank trains a replica independently; every inner_steps steps the replicas synchronize, and "
        "an outer optimizer applies the mean of their weight changes.",
        use="links are slow: one exchange every inner_steps steps; differs from one process, so compare losses",
        modules={"frog": "frog.train.parallel.data.diloco"},
        transfers=(Transfer("all_reduce", "differences", "round", "one"),),
        trains_locally=True,
        proofs={"diloco": {"name": "diloco", "inner_steps": 2}},
    ),
)
"""The values of `strategy.name`: how the data ranks keep the trained state."""

AXES = {
    "tp": StrategyEntry(
        name="tp",
        title="tensor",
        summary="Every matrix is split over the tp ranks, which work on the same samples.",
        use="a single layer is too big or too slow; every layer communicates, so keep tp within a node",
        modules={"frog": "frog.train.parallel.model.tensor", "torch": "frog.train.parallel.torch_impl.fsdp"},
        proofs={"tp": {"tp": WHOLE_WORLD, "sequence_parallel": False}, "tp+sp": {"tp": WHOLE_WORLD}},
    ),
    "pp": StrategyEntry(
        name="pp",
        title="pipeline",
        summary="The layers are split into stages, through which micro-batches flow.",
        use="the model is deep and links are slow: little traffic, but ranks wait while the pipeline fills and drains",
        modules={
            "frog": "frog.train.parallel.model.pipeline",
            "torch": "frog.train.parallel.torch_impl.torch_pipeline",
        },
        proofs={
            "pp-gpipe": {"pp": WHOLE_WORLD, "schedule": "gpipe"},
            "pp-1f1b": {"pp": WHOLE_WORLD, "schedule": "1f1b"},
            "pp-interleaved": {"pp": 2, "schedule": "interleaved"},
            "pp-zero-bubble": {"pp": WHOLE_WORLD, "schedule": "zero_bubble"},
        },
    ),
    "cp": StrategyEntry(
        name="cp",
        title="context",
        summary="Every sequence is split over the cp ranks; keys and values travel around a ring, gradients are "
        "averaged.",
        use="the sequence is too long for one rank's activations",
        modules={"frog": "frog.train.parallel.model.context"},
        proofs={"cp": {"cp": WHOLE_WORLD}},
    ),
    "ep": StrategyEntry(
        name="ep",
        title="expert",
        summary="Neighboring data ranks share the experts of each layer; tokens are sent to their experts.",
        use="the FFN is a mixture of experts whose weights no longer fit",
        modules={"frog": "frog.train.parallel.model.expert"},
        proofs={"ep": {"ep": WHOLE_WORLD}},
    ),
}
"""The strategies that split the model or the sequence, by the field of [strategy] that sets the number of ranks."""

HYBRID = StrategyEntry(
    name="hybrid",
    title="hybrid",
    summary="Neighboring data ranks form rows, and each row holds one sharded copy; the rows are replicas.",
    use="zero3 where links between nodes are slow: shard within a node, replicate across nodes",
    modules={},
)
"""What `strategy.shard` adds to a data strategy that shards its state."""


def find_strategy(name: str) -> StrategyEntry:
    """Return the entry of that name from any of the tables. Raises KeyError if there is none."""
    return {**DATA_STRATEGIES, **AXES, HYBRID.name: HYBRID}[name]


def or_list(names: Iterable[str]) -> str:
    """Join names as in `ddp, zero1 or zero2`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
