"""What `frog plan calibrate` asks its ranks to measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LayerSize:
    """A layer and a micro-batch to measure."""

    batch: int
    length: int
    width: int
    ffn_width: int
    heads: int
    vocab: int
    split: int = 1
    """Ranks of tensor parallelism, one of whose parts of the layer is measured."""


@dataclass(frozen=True)
class Request:
    """Sizes, and how long to measure each."""

    worlds: tuple[tuple[int, int], ...]
    """World sizes, each with the threads of a rank."""
    cores: float
    precisions: tuple[str, ...] = ("fp32", "bf16")
    block_s: float = 0.03
    num_rounds: int = 3
    budget_s: float = 50.0
    """Seconds after which nothing is measured a third time."""
    product_widths: tuple[int, ...] = (128, 256, 512, 1024)
    layers: tuple[LayerSize, ...] = (
        LayerSize(4, 64, 128, 352, 4, 2048),
        LayerSize(16, 64, 128, 352, 4, 2048),
        LayerSize(4, 256, 128, 352, 4, 1024),
        LayerSize(2, 128, 384, 1024, 6, 2048),
        LayerSize(4, 256, 256, 512, 4, 2048),
        LayerSize(8, 256, 384, 1024, 6, 2048),
        LayerSize(12, 64, 128, 352, 4, 2048, split=2),
        LayerSize(4, 256, 384, 1024, 6, 2048, split=2),
    )
    optimizer_numels: tuple[int, ...] = (1 << 16, 1 << 20, 1 << 22, 1 << 23)
    payload_bytes: tuple[int, ...] = (1 << 10, 1 << 16, 1 << 19, 1 << 22, 1 << 25)
    memory_numel: int = 1 << 24

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Request:
        """Return the request of a JSON table."""
        lists: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
        }
        lists["worlds"] = tuple((size, threads) for size, threads in table["worlds"])
        lists["layers"] = tuple(LayerSize(**layer) for layer in table["layers"])
        return cls(**lists)


def quick(worlds: tuple[tuple[int, int], ...], cores: float) -> Request:
    """Return a request that takes seconds, for a first impression: few sizes, each measured briefly."""
    small = (
        LayerSize(2, 32, 64, 128, 2, 512),
        LayerSize(4, 64, 128, 352, 4, 1024),
        LayerSize(2, 128, 128, 256, 4, 512),
        LayerSize(1, 64, 256, 512, 4, 2048),
    )
    return Request(
        worlds,
        cores,
        ("fp32",),
        block_s=0.003,
        num_rounds=3,
        product_widths=(64, 256),
        layers=small,
        optimizer_numels=(1 << 16, 1 << 20),
        payload_bytes=(1 << 12, 1 << 20),
        memory_numel=1 << 20,
    )
