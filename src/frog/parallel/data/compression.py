"""The mean of a long vector over the ranks, sent in 8 bits: a quarter of the bytes, and what is rounded off is kept.

Plan of communication (P bytes of float32, n ranks; 2(n-1)/n P/4 bytes leave each rank, and 4 more for each block):
  all-to-all   each rank quantises its vector and sends every other the slice that is the other's to sum
  all-gather   each rank sums its slice in float32, in the order of ranks, quantises the sum, and gives it to all
A block of 1024 numbers has one scale, its largest value over 127. What both roundings leave over is added to the next
vector (error feedback), so that it arrives later and is not lost. Every rank reads the same bytes, its own too: all end
with the same bits. A block with a NaN or an infinity comes out as NaN, so that nobody trains on without seeing it.

Source:  Dettmers 2015, "8-Bit Approximations for Parallelism in Deep Learning"; Seide et al. 2014, section 2, for the
         error that is kept; Tang et al. 2019, "DoubleSqueeze", for keeping it on both ways.
Shapes:  N blocks
"""

from __future__ import annotations

import torch
from torch import Tensor

from frog.comm import Axis

BLOCK = 1024
"""Numbers that share a scale."""

SCALE_BYTES = 4
_LARGEST = 127


class Int8Mean:
    """The mean over an axis of vectors of one size, call after call, and what their roundings have left over."""

    def __init__(self, axis: Axis, size: int, device: torch.device) -> None:
        self._axis, self._size = axis, size
        blocks = -(-size // (axis.size * BLOCK))
        self._error = torch.zeros(axis.size * blocks * BLOCK, device=device)
        self._error_of_mean = torch.zeros(blocks * BLOCK, device=device)

    def own(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of each rank."""
        return {} if self._axis.size == 1 else {"error": self._error, "error_of_mean": self._error_of_mean}

    def average(self, x: Tensor, tail: Tensor | None = None) -> None:
        """Replace `x` by its mean over the ranks, nearly. Alone nothing is sent, and nothing is rounded.

        `tail`, a few float32 numbers, is summed exactly: it rides on the first message, since each has its delay.
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
            mean += dequantise(part[: slices.shape[1]].view(-1, BLOCK + SCALE_BYTES))
            total += part[slices.shape[1] :].clone().view(torch.float32)
        tail.copy_(total)
        self._error_of_mean += mean.div_(self._axis.size)
        own = _round_off(self._error_of_mean)
        whole = own.new_empty(self._axis.size * len(own), BLOCK + SCALE_BYTES)
        self._axis.all_gather(whole, own)
        x.copy_(dequantise(whole)[: self._size])


def _round_off(wanted: Tensor) -> Tensor:
    """Quantise; leave in `wanted` what was rounded off."""
    packed = quantise(wanted)
    wanted -= dequantise(packed)
    return packed


def quantise(x: Tensor) -> Tensor:
    """Blocks of 8-bit numbers, each with the four bytes of its scale behind it.

    Shapes:  (N*1024,) float32 -> (N, 1028) int8
    """
    blocks = x.view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True) / _LARGEST
    numbers = (blocks / torch.where(scales == 0, 1.0, scales)).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
    return torch.cat([numbers, scales.view(torch.int8)], dim=1)


def dequantise(packed: Tensor) -> Tensor:
    """The inverse of `quantise`, but for what was rounded off.

    Shapes:  (N, 1028) int8 -> (N*1024,) float32
    """
    scales = packed[:, BLOCK:].contiguous().view(torch.float32)
    return (packed[:, :BLOCK] * scales).view(-1)
