"""The traffic of one rank in one optimizer step: every collective, with its payload and the bytes that leave the rank.

If a strategy trains separate replicas, the step is the last of a round; the other steps send nothing.

The few numbers that ranks agree on (loss, norm, a request to stop) are omitted: some 100 bytes per step, which is why
a run sends a little more.

n is the number of ranks that shard or that an axis has, P the bytes of the rank's parameters in float32 (of its
pipeline stages, of its tp slice), A the micro-batches of a step, x the bytes of a residual stream of B*T*D numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from frog.core.config import RunConfig, StrategyConfig
from frog.plan.layout import FLOAT_BYTES, RankShare, UnitSizes, join, root_unit
from frog.plan.links import wire_bytes


@dataclass(frozen=True)
class Flow:
    """The traffic of one operation on one axis in a step."""

    axis: str
    op: str
    size: int
    """Ranks on the axis."""
    payload_bytes: float
    num_messages: int
    what: str
    """Name of the data."""

    @property
    def wire_bytes(self) -> float:
        """Bytes that leave this rank."""
        return wire_bytes(self.op, self.payload_bytes, self.size)


def step_traffic(config: RunConfig, world_size: int, rank: int = 0) -> list[Flow]:
    """Return every flow of one optimizer step on one rank, merged by axis and operation.

    Assumes: float32 (at lower precision tensor and context parallelism send less); every expert gets the same number of
             tokens.
    """
    share = RankShare(config, world_size, rank)
    parts = (data, tensor, context, pipeline, experts)
    return merge(flow for part in parts for flow in part(share))


def merge(flows: Iterable[Flow]) -> list[Flow]:
    """Merge flows of the same axis and operation, in order of first occurrence; axes of one rank send nothing."""
    merged: dict[tuple[str, str], Flow] = {}
    for flow in flows:
        if flow.size == 1 or not flow.num_messages:
            continue
        key = flow.axis, flow.op
        if (before := merged.get(key)) is None:
            merged[key] = flow
            continue
        words = before.what.split(", ")
        merged[key] = replace(
            before,
            payload_bytes=before.payload_bytes + flow.payload_bytes,
            num_messages=before.num_messages + flow.num_messages,
            what=", ".join([*words, flow.what] if flow.what not in words else words),
        )
    return list(merged.values())


# ---- data parallelism: the transfers of a strategy's entry, over all data ranks or rows of them ----------------------

_BLOCK = 1024
"""Numbers that share a scale."""


@dataclass(frozen=True)
class PlannedGroup:
    """Parameters that the same ranks share: all of them, or, if `ep` splits the experts, the experts or the rest."""

    axis: str
    size: int
    replicate: int
    """Number of replicas, with hybrid sharding."""
    root: UnitSizes
    layers: list[UnitSizes]
    what: str = ""

    @property
    def units(self) -> list[UnitSizes]:
        return [unit for unit in (self.root, *self.layers) if unit.numel]

    @property
    def num_bytes(self) -> int:
        return FLOAT_BYTES * sum(unit.numel for unit in self.units)

    def flow(self, op: str, num_bytes: float, num_messages: int, what: str) -> Flow:
        return Flow(self.axis, op, self.size, num_bytes, num_messages, self.what + what)

    def over_replicas(self, num_messages: int) -> Flow:
        """Return hybrid sharding's all-reduce of each rank's shard of the gradient over the replicas: 2(r-1)/r P/n."""
        share = self.num_bytes / self.size
        return Flow("replicate", "all_reduce", self.replicate, share, num_messages, "gradients of the share")


def planned_groups(share: RankShare) -> list[PlannedGroup]:
    """Return the parameter groups of a rank's data parallelism."""
    splits = bool(share.config.strategy.entry.splits)
    axis, size = (share.shard_axis, share.layout.shard) if splits else (share.data_axis, share.layout.data)
    replicate = share.replicate if splits else 1
    if share.config.strategy.ep == 1:
        return [PlannedGroup(axis, size, replicate, share.root, share.layers)]
    dense, experts = share.layers_of(experts=False), share.layers_of(experts=True)
    return [
        PlannedGroup(axis, size, replicate, share.root, dense),
        PlannedGroup("expert_data", share.layout.num_expert_copies, 1, UnitSizes((), ()), experts, "experts' "),
    ]


def data(share: RankShare) -> list[Flow]:
    """Return all flows of a rank's data parallelism."""
    return [flow for group in planned_groups(share) for flow in _flows(group, share)]


def _flows(group: PlannedGroup, share: RankShare) -> Iterator[Flow]:
    strategy = share.config.strategy
    for transfer in strategy.entry.transfers:
        if strategy.compression == "int8":
            num_bytes = _int8_bytes(join(group.units).numel, group.size)
            yield group.flow("all_to_all", num_bytes, 1, transfer.what)
            yield group.flow("all_gather", num_bytes, 1, transfer.what)
            continue
        times = share.num_micro if transfer.every == "micro-batch" else 1
        elements, messages = _pieces(transfer.pieces, group, strategy)
        yield group.flow(transfer.op, times * FLOAT_BYTES * elements, times * messages, transfer.what)
        if transfer.op == "reduce_scatter":
            yield group.over_replicas(messages)


def _int8_bytes(numel: int, n: int) -> int:
    """Return the bytes of a vector in 8 bits, with a scale for each block of its n slices.

    Assumes: the rule of `train/parallel/data/compression.py`, without aligning each parameter's start to 64 bytes.
    """
    return -(-numel // (n * _BLOCK)) * n * (_BLOCK + FLOAT_BYTES)


def _pieces(pieces: str, group: PlannedGroup, strategy: StrategyConfig) -> tuple[int, int]:
    """Return the number of elements, and of messages: see `Transfer`."""
    whole, inner = join(group.units), group.layers[:-1]
    num_tensors = len(whole.matrices) + len(whole.vectors)
    num_messages = {
        "buckets": num_tensors if strategy.reduction == "naive" else num_buckets(whole, strategy.bucket_mb * 1e6),
        "one": 1,
        "layers": len(group.units),
        "layers but the last": len(inner),
    }
    return (join(inner) if pieces == "layers but the last" else whole).numel, num_messages[pieces]


def num_buckets(unit: UnitSizes, bucket_bytes: float) -> int:
    """Return the number of buckets into which ddp divides a gradient: matrices from last to first, then all vectors.

    Assumes: the rule of `train/parallel/data/ddp.py`, without aligning each parameter's start to 64 bytes.
    """
    most = max(1, int(bucket_bytes / FLOAT_BYTES))
    if unit.numel <= most:
        return 1
    num, filled = 1, 0
    for place, size in reversed(list(enumerate(unit.matrices))):
        filled += size
        if filled >= most or place == 0:
            num, filled = num + 1, 0
    return num


def partition_vectors(share: RankShare) -> list[int]:
    """Return how many elements of vectors this rank updates, per buffer. In a buffer they follow the matrices."""
    splits, n = share.config.strategy.entry.splits, share.layout.shard
    at = share.data_rank % n
    if not splits:
        return [sum(share.whole.vectors)]
    counts = []
    for unit in [share.root, *share.layers] if "gradients" in splits else [share.whole]:
        length = -(-unit.numel // n)
        start, end = at * length, min((at + 1) * length, unit.numel)
        counts.append(max(0, end - max(start, sum(unit.matrices))))
    return counts


# ---- model parallelism: tp, cp, pp and ep ----------------------------------------------------------------------------

_COUNT_BYTES = 8
"""Counts of tokens are 64-bit integers."""


def tensor(share: RankShare) -> list[Flow]:
    """Return the flows of tensor parallelism.

    Two exchanges of the stream x per block and pass: all-gather and reduce-scatter with sequence parallelism, else one
    all-reduce, which has the same bytes. Also the embedding, the head and the loss; once per step the norms' gradients.

    Source:  Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2.
    """
    n, micros, x = share.sizes["tp"], share.num_micro, share.stream_bytes

    def flow(op: str, times: int, what: str, payload_bytes: int = x) -> Flow:
        return Flow("tp", op, n, micros * times * payload_bytes, micros * times, what)

    first, last, blocks = int(share.is_first_stage), int(share.is_last_stage), 2 * share.num_layers
    again = share.num_layers if share.config.train.activation_checkpointing else 0
    loss = [
        flow("all_reduce", last, "loss", 1 * FLOAT_BYTES * share.layout.tokens),
        flow("all_reduce", last, "loss", 2 * FLOAT_BYTES * share.layout.tokens),
    ]
    if not share.config.strategy.sequence_parallel:
        # Forward after each block, backward before it; a recomputed layer stops before its last sum.
        heads = [row.numel(share.model) for row in share.model.layer_parameters() if row.kind == "head norm"]
        return [
            flow("all_reduce", 2 * blocks + again + first + last, "activations"),
            *(flow("all_reduce", share.num_layers, "head norms' gradients", FLOAT_BYTES * size) for size in heads),
            *loss,
        ]
    return [
        flow("all_gather", 2 * blocks + 2 * again + first + last, "activations"),
        flow("reduce_scatter", 2 * blocks + again + first + last, "activations"),
        *loss,
        *_norms(share),
    ]


def _norms(share: RankShare) -> list[Flow]:
    """Return this rank's share of the norms' gradients: each tp rank has them only from its own positions."""
    return [
        Flow("tp", "all_reduce", share.sizes["tp"], FLOAT_BYTES * size, 1, "norms' gradients")
        for size in partition_vectors(share)
        if size
    ]


def context(share: RankShare) -> list[Flow]:
    """Return the flows of ring attention: keys and values travel forward and again backward, then their gradients.

    Units:   k and v are 2*B*T*K*C numbers, at the precision of the products; their gradients are float32.
    Source:  Liu et al. 2023, section 3.
    """
    model, n, micros = share.model, share.sizes["cp"], share.num_micro
    width = model.kv_width // share.sizes["tp"]
    numbers = 2 * share.layout.tokens * width
    element_bytes = FLOAT_BYTES if share.config.train.precision == "fp32" else 2
    rounds = 3 if share.config.train.activation_checkpointing else 2
    shifts = micros * share.num_layers * (n - 1)
    return [
        Flow("cp", "send_recv", n, shifts * rounds * numbers * element_bytes, shifts * rounds, "keys and values"),
        Flow("cp", "send_recv", n, shifts * numbers * FLOAT_BYTES, shifts, "gradients of keys and values"),
    ]


def pipeline(share: RankShare) -> list[Flow]:
    """Return the flows of a pipeline.

    In every micro-batch a stage sends its output to the next and its input's gradient to the one before: x each, or
    x/tp with sequence parallelism. Once per step the two copies of a tied embedding sum their gradients.

    Source:  Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2: v virtual stages send v times as much.
    """
    n, micros, x = share.sizes["pp"], share.num_micro, share.stream_bytes // share.layout.stream_split
    forward = micros * sum(stage < share.num_stages - 1 for stage in share.stages)
    backward = micros * sum(stage > 0 for stage in share.stages)
    at_an_end = share.is_first_stage or share.is_last_stage
    tied = share.model.tie_word_embeddings and at_an_end and n > 1
    embedding = FLOAT_BYTES * root_unit(share.model, share.sizes["tp"]).matrices[0]
    return [
        Flow("pp", "send", n, forward * x, forward, "activations"),
        Flow("pp", "send", n, backward * x, backward, "gradients of activations"),
        Flow("pp", "recv", n, backward * x, backward, "activations"),
        Flow("pp", "recv", n, forward * x, forward, "gradients of activations"),
        Flow("tied", "all_reduce", 2, tied * embedding, int(tied), "tied embedding's gradient"),
    ]


def experts(share: RankShare) -> list[Flow]:
    """Return the flows of expert parallelism.

    A layer's tokens go to the ranks of their experts and back, forward and backward: 4 R*D numbers, where R counts a
    token once for each of its experts. Before that, each rank announces how many rows it sends to each expert; for the
    load-balancing loss all data ranks sum their counts.

    Assumes: experts are chosen evenly.
    Source:  Lepikhin et al. 2020, section 3.
    """
    model, strategy, micros = share.model, share.config.strategy, share.num_micro
    if model.num_local_experts is None:
        return []
    again = 1 if share.config.train.activation_checkpointing else 0
    times = micros * share.num_layers
    rows = FLOAT_BYTES * share.layout.tokens * model.num_experts_per_tok * model.hidden_size
    counts = _COUNT_BYTES * model.num_local_experts * (1 + again)
    return [
        Flow("ep", "all_to_all", strategy.ep, times * counts, times * (1 + again), "counts"),
        Flow("ep", "all_to_all", strategy.ep, times * (4 + 2 * again) * rows, times * (4 + 2 * again), "tokens"),
        Flow(
            share.data_axis,
            "all_reduce",
            share.layout.data,
            times * (1 + again) * _COUNT_BYTES * (model.num_local_experts + 1),
            times * (1 + again),
            "counts",
        ),
    ]
