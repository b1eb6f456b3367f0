"""The strategies, one entry each: what it is called, who keeps what, what is sent, when to use it, who carries it out.

All that is known of a strategy without running it is here, and needs no torch. A run file's checks, the formulas of
memory and traffic, `frog strategies`, the report and the proof's matrix are made from these tables. A new strategy is
its entry here, its file in `frog/parallel` and its row in docs/strategies.md: tests name what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

WHOLE_WORLD = "all"
"""In a proof's fields: as many ranks as there are."""

PROOF_BUCKET_MB = 0.02
"""Several buckets in the small model that is proved, so that their borders are proved too."""


@dataclass(frozen=True)
class StrategyEntry:
    """What can be said of any strategy."""

    name: str
    """Of data parallelism the value of `strategy.name`; of all others the field that says over how many ranks."""
    title: str
    """In tables."""
    summary: str
    """What it is, in a sentence."""
    use: str
    """When to use it."""
    modules: Mapping[str, str]
    """Who carries it out, by `strategy.implementation`: the file, whose `build` makes it."""
    proofs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is proved of it, where that is more than one case: [strategy] fields by the case's name."""


@dataclass(frozen=True)
class Transfer:
    """A collective of the data ranks that every step has, or every round of steps: how often, in how many messages.

    `pieces` are the buckets that `strategy.reduction` makes; one message; one for each layer and one for the rest; or
    one for each layer but the last, where that and the rest need not be sent.
    """

    op: Literal["all_reduce", "reduce_scatter", "all_gather"]
    what: Literal["gradients", "parameters", "differences"]
    every: Literal["step", "micro-batch", "round"]
    pieces: Literal["buckets", "one", "layers", "layers but the last"]


@dataclass(frozen=True)
class DataStrategyEntry(StrategyEntry):
    """A way for the data ranks to keep the parameters, the gradients and the optimizer's state."""

    splits: frozenset[Literal["optimizer", "gradients", "parameters"]] = frozenset()
    """What each rank keeps only its partition of. Everything else every rank has whole."""
    transfers: tuple[Transfer, ...] = ()
    apart: bool = False
    """Whether the data ranks go on apart, each with weights and moments of its own, and meet once a round."""

    @property
    def sends_every_micro_batch(self) -> bool:
        """Whether accumulating gradients over micro-batches saves no traffic."""
        return any(transfer.every == "micro-batch" for transfer in self.transfers)

    @property
    def zero_stage(self) -> int:
        """ZeRO's number for what is split."""
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
        use="the model, its gradients and Adam's two moments fit on one rank: nothing is simpler",
        modules={"frog": "frog.parallel.data.ddp", "torch": "frog.parallel.torch_impl.ddp"},
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
        summary="Every data rank keeps one partition of Adam's state, and updates those parameters for all.",
        use="Adam's moments no longer fit: they are partitioned, for the traffic of ddp",
        modules={
            "frog": "frog.parallel.data.zero1",
            "torch": "frog.parallel.torch_impl.ddp",
            "deepspeed": "frog.parallel.torch_impl.deepspeed",
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
        use="the gradients no longer fit either; they travel in every micro-batch, so keep grad_accum low",
        modules={
            "frog": "frog.parallel.data.zero2",
            "torch": "frog.parallel.torch_impl.fsdp",
            "deepspeed": "frog.parallel.torch_impl.deepspeed",
        },
        splits=frozenset({"optimizer", "gradients"}),
        transfers=(_REDUCED_BY_LAYER, Transfer("all_gather", "parameters", "step", "layers")),
    ),
    # A (3P - R)(n-1)/n: R, the last layer and what is in no layer, stays whole from forward to backward. Source:
    # Rajbhandari et al. 2020, section 7.2, which has 3P: nothing stays.
    DataStrategyEntry(
        name="zero3",
        title="zero3",
        summary="Every data rank keeps one partition of the parameters too; a layer is whole while it is at work.",
        use="the parameters no longer fit either; up to 1.5 times the traffic of ddp, for each micro-batch",
        modules={
            "frog": "frog.parallel.data.zero3",
            "torch": "frog.parallel.torch_impl.fsdp",
            "deepspeed": "frog.parallel.torch_impl.deepspeed",
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
        summary="Every data rank trains a replica by itself; every inner_steps steps the replicas meet, and an outer "
        "optimizer takes the mean of how far they have come.",
        use="links are slow: one exchange in inner_steps steps; not what one process computes, so compare the losses",
        modules={"frog": "frog.parallel.data.diloco"},
        transfers=(Transfer("all_reduce", "differences", "round", "one"),),
        apart=True,
        proofs={"diloco": {"name": "diloco", "inner_steps": 2}},
    ),
)
"""What `strategy.name` can be: how the data ranks keep what they train."""

AXES = {
    "tp": StrategyEntry(
        name="tp",
        title="tensor",
        summary="Every matrix is split over the tp ranks, which work on the same samples.",
        use="a single layer is too big or too slow; it talks in every layer, so keep it within a node",
        modules={"frog": "frog.parallel.model.tensor", "torch": "frog.parallel.torch_impl.fsdp"},
        proofs={"tp": {"tp": WHOLE_WORLD, "sequence_parallel": False}, "tp+sp": {"tp": WHOLE_WORLD}},
    ),
    "pp": StrategyEntry(
        name="pp",
        title="pipeline",
        summary="The layers are cut into stages, through which micro-batches flow.",
        use="the model is deep and links are slow: little is sent, but ranks wait while the pipeline fills and drains",
        modules={"frog": "frog.parallel.model.pipeline", "torch": "frog.parallel.torch_impl.pipeline"},
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
        summary="Every sequence is split over the cp ranks; keys and values go round in a ring, gradients are "
        "averaged.",
        use="the sequence is too long for one rank's activations",
        modules={"frog": "frog.parallel.model.context"},
        proofs={"cp": {"cp": WHOLE_WORLD}},
    ),
    "ep": StrategyEntry(
        name="ep",
        title="expert",
        summary="The experts of each layer are shared out over neighbouring data ranks; tokens travel to them.",
        use="the FFN is a mixture of experts whose weights no longer fit",
        modules={"frog": "frog.parallel.model.expert"},
        proofs={"ep": {"ep": WHOLE_WORLD}},
    ),
}
"""What splits the model or the sequence, by the field of [strategy] that says over how many ranks."""

HYBRID = StrategyEntry(
    name="hybrid",
    title="hybrid",
    summary="Rows of neighbouring data ranks each hold one copy between them; the rows repeat it.",
    use="zero3 where links between nodes are slow: share out within a node, repeat across nodes",
    modules={},
)
"""What `strategy.shard` adds to a data strategy that splits something."""


def find_strategy(name: str) -> StrategyEntry:
    """The entry of that name, in whichever table. Raises KeyError if there is none."""
    return {**DATA_STRATEGIES, **AXES, HYBRID.name: HYBRID}[name]


def or_list(names: Iterable[str]) -> str:
    """Names as in `ddp, zero1 or zero2`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
