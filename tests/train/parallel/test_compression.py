"""The mean in 8 bits, compared with numpy: bit for bit, call after call, with error feedback."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from threads_axis import on_every_rank

from frog.train.parallel.data.compression import BLOCK, Int8Mean, dequantize, quantize

SIZE = 5000
"""Not a multiple of the block size or of a number of ranks, so that slices end in padding."""


def vectors(rank: int, calls: int) -> np.ndarray:
    values = np.random.default_rng(rank).normal(size=(calls, SIZE)).astype(np.float32)
    values[:, 1024:2048] *= 1e-4  # a block with its own scale
    return values


def rounded(x: np.ndarray) -> np.ndarray:
    """Round to 255 levels in each block, using only loops and float32."""
    out = np.empty_like(x)
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK]
        scale = np.abs(block).max() / np.float32(127)
        levels = np.rint(block / scale) if scale else np.zeros_like(block)
        out[start : start + BLOCK] = levels.astype(np.int8).astype(np.float32) * scale
    return out


def means_by_numpy(inputs: list[np.ndarray]) -> np.ndarray:
    """Shapes: n of (calls, SIZE) -> (calls, SIZE)."""
    n, (calls, _) = len(inputs), inputs[0].shape
    length = math.ceil(SIZE / (n * BLOCK)) * BLOCK
    errors = np.zeros((n, n * length), np.float32)
    error_of_mean = np.zeros(n * length, np.float32)
    found = np.empty((calls, SIZE), np.float32)
    for call in range(calls):
        total = np.zeros(n * length, np.float32)
        for rank in range(n):
            errors[rank, :SIZE] += inputs[rank][call]
            read = rounded(errors[rank])
            errors[rank] -= read
            total += read
        error_of_mean += total / np.float32(n)
        read = rounded(error_of_mean)
        error_of_mean -= read
        found[call] = read[:SIZE]
    return found


def means(size: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return the result of every rank, call after call."""

    def work(axis: Any) -> np.ndarray:
        mean, found = Int8Mean(axis, SIZE, torch.device("cpu")), []
        for row in torch.from_numpy(inputs[axis.rank].copy()):
            mean.average(row)
            found.append(row.numpy())
        return np.stack(found)

    return on_every_rank(size, work)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_int8_mean_matches_numpy_bitwise_on_every_rank(size: int) -> None:
    inputs = [vectors(rank, calls=4) for rank in range(size)]
    expected = means_by_numpy(inputs)
    for found in means(size, inputs):
        assert np.array_equal(found.view(np.int32), expected.view(np.int32))


def test_rounding_errors_are_added_to_later_means() -> None:
    inputs = [vectors(rank, calls=40) for rank in range(2)]
    found, true = means(2, inputs)[0].sum(0), np.mean(inputs, axis=0).sum(0)
    one = np.abs(means(2, [rows[:1] for rows in inputs])[0] - np.mean(inputs, axis=0)[:1]).max()
    assert np.abs(found - true).max() < 3 * one, "40 means together are as far off as one"


def test_tail_is_summed_exactly() -> None:
    def work(axis: Any) -> list[float]:
        tail = torch.tensor([1.0, 1e-8, 3.7]) * (axis.rank + 1)
        Int8Mean(axis, SIZE, torch.device("cpu")).average(torch.zeros(SIZE), tail)
        return tail.tolist()

    expected = (torch.tensor([1.0, 1e-8, 3.7]) + torch.tensor([1.0, 1e-8, 3.7]) * 2).tolist()
    assert on_every_rank(2, work) == [expected, expected]


def test_single_rank_rounds_nothing() -> None:
    ((row,),) = means(1, [vectors(0, calls=1)])
    assert np.array_equal(row, vectors(0, calls=1)[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_become_nan(bad: float) -> None:
    x = torch.ones(2 * BLOCK)
    x[7] = bad
    back = dequantize(quantize(x))
    assert not back[:BLOCK].isfinite().any()
    assert torch.equal(back[BLOCK:], torch.ones(BLOCK))


def test_zeros_and_largest_value_are_exact() -> None:
    x = torch.zeros(2 * BLOCK)
    x[BLOCK + 5] = -3e-30
    assert torch.equal(dequantize(quantize(x)), x)
