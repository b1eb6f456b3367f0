"""The work of a step's parts, from the sizes of the model: operations of products and attention, bytes of the rest.

N tokens, T keys of each, D model width, F FFN width, W weights of the matrices, V vocabulary; n ranks of tp. The bytes
count what eager kernels read and write, forward and backward, in float32.
"""

from __future__ import annotations

from frog.core.config import ModelConfig
from frog.plan.layout import FLOAT_BYTES, layer_unit
from frog.plan.machine.costs import Work

_STREAM, _HEADS, _FFN = 36, 28, 16
"""Numbers of the stream (norms, residuals), of queries, keys and values (rotation, transposes), and of the FFN's
activations that a token's two passes move, for each column."""
_PARAMETERS, _LOGITS = 4, 6
"""Reads and writes of a parameter and its gradient, and of a logit."""
_OPTIMIZER = 11
"""Norm 1, clipping 2, AdamW 7 (reads of gradient, weight and two moments, writes of the last three), reset 1."""


def layer_work(model: ModelConfig, tokens: float, length: float, tp: int = 1, stream_split: int = 1) -> Work:
    """Return the work of both passes through one layer, on one of `tp` ranks.

    Source:  6 N W operations of products; attention, causal, has two products forward and five backward: 7 N T D.
    """
    unit = layer_unit(model, tp)
    columns = (
        _STREAM * model.hidden_size / stream_split
        + _HEADS * (model.hidden_size + model.kv_width) / 2 / tp
        + _FFN * model.intermediate_size / tp
    )
    return Work(
        products=6.0 * tokens * sum(unit.matrices),
        attention=7.0 * tokens * length * model.hidden_size / tp,
        num_bytes=FLOAT_BYTES * (tokens * columns + _PARAMETERS * unit.numel),
    )


def head_work(model: ModelConfig, tokens: float, tp: int = 1) -> Work:
    """Return the work of both passes through the embedding, the last norm, the output matrix and the loss."""
    weights = model.vocab_size * model.hidden_size / tp
    columns = _STREAM / 2 * model.hidden_size + _LOGITS * model.vocab_size / tp
    return Work(products=6.0 * tokens * weights, num_bytes=FLOAT_BYTES * (tokens * columns + 2 * _PARAMETERS * weights))


def optimizer_work(numel: float, num_states: int = 2) -> Work:
    """Return the work of the norm, clipping, an update with so many states, and the reset of the gradients."""
    return Work(num_bytes=FLOAT_BYTES * numel * (_OPTIMIZER - 2 * (2 - num_states)))


def moved(num_bytes: float) -> Work:
    """Return the work of moving bytes."""
    return Work(num_bytes=num_bytes)
