"""Average a long vector over the ranks in 8 bits: a quarter of the bytes, with error feedback for the rounding.

Plan of communication (P bytes of float32, n ranks; 2(n-1)/n P/4 bytes leave each rank, and 4 more for each block):
  all-to-all   each rank quantizes its vector and sends every other rank the slice that this rank sums
  all-gather   each rank sums its slice in float32, in the order of ranks, quantizes the sum, and sends it to all
A block of 1024 numbers has one scale, its largest value over 127. Both rounding errors are added to the next vector
(error feedback), so that they arrive late but are not lost. All ranks read the same bytes, including their own, and end
with the same bits. A block with a NaN or an infinity becomes NaN, so that training cannot continue unnoticed.

Source:  Dettmers 2015, "8-Bit Approximations for Parallelism in Deep Learning"; Seide et al. 2014, section 2, for
         error feedback; Tang et al. 2019, "DoubleSqueeze", for error feedback in both directions.
Shapes:  N blocks
"""

from __future__ import annotations

import torch
from torch import Tensor

from frog.train.comm import Axis

BLOCK = 1024
"""Numbers that share a scale."""

SCALE_BYTES = 4
_LARGEST = 127


class Int8Mean:
    """Averages vectors of one size over an axis, call after call, and keeps their rounding errors."""

    def __init__(self, axis: Axis, size: int, device: torch.device) -> None:
        self._axis, self._size = axis, size
        blocks = -(-size // (axis.size * BLOCK))
        self._error = torch.zeros(axis.size * blocks * BLOCK, device=device)
        self._error_of_mean = torch.zeros(blocks * BLOCK, device=device)

    def own(self) -> dict[str, Tensor]:
        """Return the rounding errors, which a checkpoint saves for each rank."""
        return {} if self._axis.size == 1 else {"error": self._error, "error_of_mean": self._error_of_mean}

    def average(self, x: Tensor, tail: Tensor | None = None) -> None:
        """Replace `x` by its approximate mean over the ranks. A single rank sends and rounds nothing.

        `tail`, a few float32 numbers, is summed exactly, as part of the first message, to save a message's latency.
        """
        if self._axis.size == 1:
            return
        tail = self._error[:0] if tail is None else tail
        self._error[: self._size] += x
        slices = _round_off(self._error).view(self._axis.size, -1)
        sent = torch.cat([slices, tail.view(torch.int8).expand(self._axis.size, -1)], dim=1)
        received = torch.empty_like(sent)
        self._axis.all_to_all(received, sent)
        mean, total = torch.zeros_like(self._error_of_mean), torch.zeros_like(tail)
        for part in received:
            mean += dequantize(part[: slices.shape[1]].view(-1, BLOCK + SCALE_BYTES))
            total += part[slices.shape[1] :].clone().view(torch.float32)
        tail.copy_(total)
        self._error_of_mean += mean.div_(self._axis.size)
        own = _round_off(self._error_of_mean)
        whole = own.new_empty(self._axis.size * len(own), BLOCK + SCALE_BYTES)
        self._axis.all_gather(whole, own)
        x.copy_(dequantize(whole)[: self._size])


def _round_off(wanted: Tensor) -> Tensor:
    """Quantize `wanted`; leave the rounding error in it."""
    packed = quantize(wanted)
    wanted -= dequantize(packed)
    return packed


def quantize(x: Tensor) -> Tensor:
    """Return blocks of 8-bit numbers, each followed by the four bytes of its scale.

    Shapes:  (N*1024,) float32 -> (N, 1028) int8
    """
    blocks = x.view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True) / _LARGEST
    numbers = (blocks / torch.where(scales == 0, 1.0, scales)).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
    return torch.cat([numbers, scales.view(torch.int8)], dim=1)


def dequantize(packed: Tensor) -> Tensor:
    """Invert `quantize`, except for the rounding error.

    Shapes:  (N, 1028) int8 -> (N*1024,) float32
    """
    scales = packed[:, BLOCK:].contiguous().view(torch.float32)
    return (packed[:, :BLOCK] * scales).view(-1)
