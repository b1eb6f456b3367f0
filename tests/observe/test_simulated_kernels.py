"""Which attention of simulated GPUs is computed by each rank alone."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

kernels: Any = import_module("frog.observe.hook.frog_simulated_gpus.kernels")


class Place:
    """A placement of DTensor: replicated, sharded along a dimension, or partial."""

    def __init__(self, kind: str, dim: int = 0) -> None:
        self.kind, self.dim = kind, dim

    def is_replicate(self) -> bool:
        return self.kind == "whole"

    def is_shard(self) -> bool:
        return self.kind == "shard"


WHOLE, BATCH, HEADS, SEQUENCE, PARTIAL = (
    Place("whole"), Place("shard", 0), Place("shard", 1), Place("shard", 2), Place("partial"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("query", "others", "local"),
    [
        ((WHOLE,), [(WHOLE,), (WHOLE,)], True),
        ((BATCH,), [(BATCH,), (BATCH,)], True),
        ((HEADS,), [(HEADS,), (HEADS,)], True),
        ((BATCH, HEADS), [(BATCH, HEADS)] * 2, True),
        ((SEQUENCE,), [(SEQUENCE,), (SEQUENCE,)], False),
        ((PARTIAL,), [(PARTIAL,), (PARTIAL,)], False),
        ((BATCH, SEQUENCE), [(BATCH, SEQUENCE)] * 2, False),
        ((BATCH,), [(HEADS,), (BATCH,)], False),
        ((BATCH,), [(BATCH,), (HEADS,)], False),
        ((BATCH,), [(BATCH,), None], False),
    ],
)
def test_attention_is_local_if_all_are_split_alike_by_batch_or_heads(
    query: Any, others: list[Any], local: bool
) -> None:
    placed = [SimpleNamespace() if each is None else SimpleNamespace(placements=each) for each in others]
    assert kernels._is_local(SimpleNamespace(placements=query), *placed) is local
