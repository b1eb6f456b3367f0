"""The traffic of model parallelism in a step: over tp, cp, pp and ep.

n is the number of ranks on the axis, A the micro-batches of a step, x the bytes of a residual stream of B*T*D numbers.
"""

from __future__ import annotations

from frog.plan.data_traffic import partition_vectors
from frog.plan.flow import Flow
from frog.plan.layout import FLOAT_BYTES, Layout, root_unit

_COUNT_BYTES = 8
"""Counts of tokens are 64-bit integers."""


def tensor(layout: Layout) -> list[Flow]:
    """Return the flows of tensor parallelism.

    Two exchanges of the stream x per block and pass: all-gather and reduce-scatter with sequence parallelism, else one
    all-reduce, which has the same bytes. Also the embedding, the head and the loss; once per step the norms' gradients.

    Source:  Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2.
    """
    n, micros, x = layout.sizes["tp"], layout.num_micro, layout.stream_bytes

    def flow(op: str, times: int, what: str, payload_bytes: int = x) -> Flow:
        return Flow("tp", op, n, micros * times * payload_bytes, micros * times, what)

    first, last, blocks = int(layout.is_first_stage), int(layout.is_last_stage), 2 * layout.num_layers
    again = layout.num_layers if layout.config.train.activation_checkpointing else 0
    loss = [
        flow("all_reduce", last, "loss", 1 * FLOAT_BYTES * layout.num_tokens),
        flow("all_reduce", last, "loss", 2 * FLOAT_BYTES * layout.num_tokens),
    ]
    if not layout.config.strategy.sequence_parallel:
        # Forward after each block, backward before it; a recomputed layer stops before its last sum.
        heads = [row.numel(layout.model) for row in layout.model.layer_parameters() if row.kind == "head norm"]
        return [
            flow("all_reduce", 2 * blocks + again + first + last, "activations"),
            *(flow("all_reduce", layout.num_layers, "head norms' gradients", FLOAT_BYTES * size) for size in heads),
            *loss,
        ]
    return [
        flow("all_gather", 2 * blocks + 2 * again + first + last, "activations"),
        flow("reduce_scatter", 2 * blocks + again + first + last, "activations"),
        *loss,
        *_norms(layout),
    ]


def _norms(layout: Layout) -> list[Flow]:
    """Return this rank's share of the norms' gradients: each tp rank has them only from its own positions."""
    return [
        Flow("tp", "all_reduce", layout.sizes["tp"], FLOAT_BYTES * size, 1, "norms' gradients")
        for size in partition_vectors(layout)
        if size
    ]


def context(layout: Layout) -> list[Flow]:
    """Return the flows of ring attention: keys and values travel forward and again backward, then their gradients.

    Units:   k and v are 2*B*T*K*C numbers, at the precision of the products; their gradients are float32.
    Source:  Liu et al. 2023, section 3.
    """
    model, n, micros = layout.model, layout.sizes["cp"], layout.num_micro
    width = model.kv_width // layout.sizes["tp"]
    numbers = 2 * layout.num_tokens * width
    element_bytes = FLOAT_BYTES if layout.config.train.precision == "fp32" else 2
    rounds = 3 if layout.config.train.activation_checkpointing else 2
    shifts = micros * layout.num_layers * (n - 1)
    return [
        Flow("cp", "send_recv", n, shifts * rounds * numbers * element_bytes, shifts * rounds, "keys and values"),
        Flow("cp", "send_recv", n, shifts * numbers * FLOAT_BYTES, shifts, "gradients of keys and values"),
    ]


def pipeline(layout: Layout) -> list[Flow]:
    """Return the flows of a pipeline.

    In every micro-batch a stage sends its output to the next and its input's gradient to the one before: x each, or
    x/tp with sequence parallelism. Once per step the two copies of a tied embedding sum their gradients.

    Source:  Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2: v virtual stages send v times as much.
    """
    n, micros, x = layout.sizes["pp"], layout.num_micro, layout.stream_bytes // layout.stream_split
    forward = micros * sum(stage < layout.num_stages - 1 for stage in layout.stages)
    backward = micros * sum(stage > 0 for stage in layout.stages)
    at_an_end = layout.is_first_stage or layout.is_last_stage
    tied = layout.model.tie_word_embeddings and at_an_end and n > 1
    embedding = FLOAT_BYTES * root_unit(layout.model, layout.sizes["tp"]).matrices[0]
    return [
        Flow("pp", "send", n, forward * x, forward, "activations"),
        Flow("pp", "send", n, backward * x, backward, "gradients of activations"),
        Flow("pp", "recv", n, backward * x, backward, "activations"),
        Flow("pp", "recv", n, forward * x, forward, "gradients of activations"),
        Flow("tied", "all_reduce", 2, tied * embedding, int(tied), "tied embedding's gradient"),
    ]


def experts(layout: Layout) -> list[Flow]:
    """Return the flows of expert parallelism.

    A layer's tokens go to the ranks of their experts and back, forward and backward: 4 R*D numbers, where R counts a
    token once for each of its experts. Before that, each rank announces how many rows it sends to each expert; for the
    load-balancing loss all data ranks sum their counts.

    Assumes: experts are chosen evenly.
    Source:  Lepikhin et al. 2020, section 3.
    """
    model, strategy, micros = layout.model, layout.config.strategy, layout.num_micro
    if model.num_local_experts is None:
        return []
    again = 1 if layout.config.train.activation_checkpointing else 0
    times = micros * layout.num_layers
    rows = FLOAT_BYTES * layout.num_tokens * model.num_experts_per_tok * model.hidden_size
    counts = _COUNT_BYTES * model.num_local_experts * (1 + again)
    return [
        Flow("ep", "all_to_all", strategy.ep, times * counts, times * (1 + again), "counts"),
        Flow("ep", "all_to_all", strategy.ep, times * (4 + 2 * again) * rows, times * (4 + 2 * again), "tokens"),
        Flow(
            layout.data_axis,
            "all_reduce",
            layout.data,
            times * (1 + again) * _COUNT_BYTES * (model.num_local_experts + 1),
            times * (1 + again),
            "counts",
        ),
    ]
