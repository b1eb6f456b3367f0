"""Time of operations on one GPU: products, attention and memory-bound operations.

A product takes the longer of its arithmetic and its memory traffic (roofline, Williams et al. 2009). Its arithmetic
rate depends on its size: tiles of 128 x 256 outputs fill the multiprocessors in waves, the last of which is partly
empty, and each tile has a start and an end that do no arithmetic (NVIDIA, "Matrix multiplication background"). A size
that is not a multiple of a tile is computed as the next one, and rows of matrices that do not start at multiples of 16
bytes are loaded in smaller pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from frog.plan.columns import Column
from frog.plan.estimate.constants import Constants
from frog.plan.estimate.hardware import Gpu
from frog.plan.layout import Layout
from frog.plan.memory import PRODUCT_BYTES

_TILE_ROWS, _TILE_COLUMNS = 128, 256
_EDGE, _INNER_EDGE = 128, 32
"""Sizes to which a product's outputs and its inner dimension are filled up: the sides of a tile, and what one step of
the sum reads."""
LOAD_BYTES = 16
"""Bytes that a thread loads at once, if they start at a multiple of it; else a half, a quarter or an eighth."""
_HEAD_EDGE = 32
"""Step of the head widths for which fused attention has kernels."""
_PASSES = 3
"""How often a byte that arrives at a rank passes its memory in NCCL's rings: written to NCCL's buffer, read from there,
and, of a gather, written to the output, or, of a reduction, added to a byte that is read. It is sent on from registers.
What computation reads later is its own traffic."""
BLOCK = 128
"""Rows and columns of a block of scores in fused attention."""
_OLDER_ATTENTION = {"flash1": 0.55, "triton": 0.77}
"""Rates, of FlashAttention 2's. Dao 2023, section 4: it is 1.7 to 3 times faster than version 1, and 1.3 to 2.5 times
faster than version 1 in Triton; the lower ends are for causal attention with wide heads."""
_EXPONENTIAL_WIDTH = 16
"""Head width whose products take as long as the part of an exponential that no product hides. On A100 an exponential
takes as long as the products of 32: 4 C operations at 2,048 per cycle and multiprocessor, 1 at 16."""


@dataclass(frozen=True)
class Kernels:
    """The operations of one GPU with one precision."""

    gpu: Gpu
    layout: Layout
    constants: Constants

    @property
    def product_rate(self) -> float:
        """Operations per second of large products."""
        gpu, constants = self.gpu, self.constants
        if narrow := gpu.sustained_narrow(self.layout.precision):
            return narrow * constants.product_fp8
        return gpu.sustained_bf16 * constants.product

    @property
    def overlap_cost(self) -> float:
        """Seconds of computation that each second of a collective next to it costs: what its multiprocessors would
        have computed. A small device, or one that stands for threads, has fewer.
        """
        num_sms = self.gpu.num_sms
        taken = min(self.layout.traits.collective_sms, num_sms / 2)
        return taken / (num_sms - taken)

    def lost_beside(self, seconds: Column, arrived: Column) -> Column:
        """Return the seconds that computation loses to a collective next to it with so many bytes that arrive.

        On a slow network few arrive in a second, and take little of the memory's bandwidth.
        """
        return self.overlap_cost * seconds + _PASSES * arrived / self.memory_rate

    @property
    def memory_rate(self) -> float:
        """Bytes per second of memory-bound operations."""
        return self.gpu.memory_bandwidth * self.constants.memory

    def product(
        self,
        rows: float,
        inner: float,
        columns: float,
        num: int = 1,
        *,
        rate: float | None = None,
        output_bytes: int = 2,
        aligned: float | None = None,
        mean_rows: bool = False,
    ) -> float:
        """Return the seconds of `num` equal products in one launch: (rows, inner) by (inner, columns).

        `aligned` is the share of the rate that the starts of the matrices' rows leave; by default that of rows of
        `inner` and `columns` numbers, which a compiler pads. With `mean_rows`, `rows` is a mean of several products,
        each of which fills up half a tile on average.

        Source:  roofline: max(2 r i c / (rate * size efficiency), bytes / memory rate).
        """
        if not rows:
            return 0.0
        filled_rows = rows + min(rows, _EDGE) / 2 if mean_rows else _filled(rows, _EDGE)
        outputs = filled_rows, _filled(columns, _EDGE)
        num_rows = max(1.0, filled_rows / _TILE_ROWS) if mean_rows else math.ceil(rows / _TILE_ROWS)
        tiles = num * num_rows * max(1.0, outputs[1] / _TILE_COLUMNS)
        filled = tiles / (tiles + self.constants.wave_loss * self.gpu.num_sms)
        rate = rate or self.product_rate
        tile_s = 2.0 * _TILE_ROWS * _TILE_COLUMNS * inner * self.gpu.num_sms / rate
        deep = tile_s / (tile_s + self.constants.tile_s)
        whole = 2.0 * num * math.prod(outputs) * _filled(inner, _INNER_EDGE)
        arithmetic = whole / (rate * filled * deep * (aligned or self._aligned(inner, columns)))
        traffic = num * (2.0 * inner * (rows + columns) + output_bytes * rows * columns)
        return max(arithmetic, traffic / self.memory_rate)

    def linear(
        self, rows: float, inner: float, columns: float, num: int = 1, *, mean_rows: bool = False
    ) -> tuple[float, float]:
        """Return the seconds of a linear layer's forward and backward pass; `mean_rows` as in `product`.

        The backward pass multiplies the output's gradient by the weight and by the input, and adds the second product
        to the weight's gradient in float32.
        """
        forward = self.product(rows, inner, columns, num, mean_rows=mean_rows)
        of_input = self.product(rows, columns, inner, num, mean_rows=mean_rows)
        of_weight = self.product(inner, rows, columns, num, output_bytes=8, aligned=self._aligned(inner, columns))
        casts = self._casts(rows * num, inner), self._casts(rows * num, columns)
        return forward + casts[0], of_input + of_weight + casts[1]

    def _aligned(self, *widths: float) -> float:
        return 1.0 if self.layout.traits.pads_products else aligned_share(*widths)

    def _casts(self, rows: float, width: float) -> float:
        """Return the seconds to cast a tensor to float8, as it is and transposed: write 2 bytes, since the operation
        before it casts its own output; with a scale for each row or tile, another kernel reads it first, twice.
        Blocks of MXFP8 are read once; NVFP4 reads once more for the scale of the whole tensor. Both write two copies,
        with the blocks' scales.

        Source:  Transformer Engine, "Low precision training", MXFP8 and NVFP4.
        """
        precision = self.layout.precision
        read = {"fp8": 4.0 * self.layout.traits.scales_tiles, "fp8_rowwise": 4.0, "mxfp8": 2.0, "nvfp4": 4.0}
        num_bytes = read.get(precision, 0.0) + 2 * PRODUCT_BYTES.get(precision, 1.0) * self.layout.narrow
        return num_bytes * rows * width / self.memory_rate

    def moves(self, num_bytes: float) -> float:
        """Return the seconds of memory-bound operations that read and write so many bytes."""
        return num_bytes / self.memory_rate

    def attention(self, batch_heads: float, queries: float, keys: float, dims: tuple[int, int]) -> tuple[float, float]:
        """Return the seconds of attention forward and backward; `dims` are a key head's width and a value head's.

        Source:  Dao 2023: the forward pass has two products of the scores' size, the backward pass five.
        """
        if self.layout.traits.attention == "scores":
            return self._attention_with_scores(batch_heads, queries, keys, dims)
        gpu = self.gpu
        dims = int(_filled(dims[0], _HEAD_EDGE)), int(_filled(dims[1], _HEAD_EDGE))
        kind = self.layout.traits.attention
        best = gpu.attention_fused if kind == "fused" else gpu.attention * _OLDER_ATTENTION.get(kind, 1.0)
        best *= (dims[0] / (dims[0] + _EXPONENTIAL_WIDTH)) / (128 / (128 + _EXPONENTIAL_WIDTH))
        blocks = batch_heads * max(1.0, queries / BLOCK)
        filled = blocks / (blocks + self.constants.wave_loss * gpu.num_sms)
        half = 0.5 * (keys + BLOCK)  # causal, with whole blocks on the diagonal
        forward = 2.0 * batch_heads * queries * half * sum(dims) / (best * self.constants.attention * filled)
        return forward, 2.5 * forward

    def _attention_with_scores(
        self, batch_heads: float, queries: float, keys: float, dims: tuple[int, int]
    ) -> tuple[float, float]:
        """Return the seconds of attention that writes its scores to memory, in 16 bits.

        The scores pass through softmax (2 passes) and dropout (2 passes and a mask): 7 bytes forward, 13 backward, next
        to the products' own traffic.
        """
        num, rate = max(1, round(batch_heads)), self.gpu.sustained_bf16 * self.constants.product
        products = [
            self.product(queries, dims[0], keys, num, rate=rate),
            self.product(queries, keys, dims[1], num, rate=rate),
        ]
        scores, dropout = batch_heads * queries * keys, self.layout.traits.dropout
        forward = sum(products) + self.moves(scores * (4 + 5 * dropout))
        return forward, 2 * sum(products) + self.moves(scores * (6 + 5 * dropout))


def _filled(size: float, edge: int) -> float:
    """Return a size filled up to a multiple of `edge`; smaller ones have smaller tiles."""
    return math.ceil(size / edge) * edge if size > edge else size


def aligned_share(*widths: float) -> float:
    """Return the share of the rate that a product keeps whose matrices have rows of these lengths, of 16-bit numbers:
    1 for multiples of 8, an eighth for odd ones. Lengths that are means of several count as aligned.
    """
    starts = [math.gcd(LOAD_BYTES, 2 * int(width)) for width in widths if width == int(width)]
    return min(starts, default=LOAD_BYTES) / LOAD_BYTES
