"""The samples of each step: a function of (seed, epoch, step) only, independent of the world.

The samples form an endless stream. Each epoch is a permutation of all samples, and step k uses the k-th slice of the
stream. The permutation is computed on demand, never stored: a keyed Feistel network permutes the numbers below a power
of four, and cycle walking skips the numbers that are not samples.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from frog.core.seeds import derive_seed

_NUM_ROUNDS = 6


def sample_ids(seed: int, step: int, global_batch_size: int, num_samples: int) -> np.ndarray:
    """Return the samples of optimizer step `step`, counted from 1, in order.

    Shapes:  -> (global_batch_size,) int64
    """
    return stream_ids(seed, (step - 1) * global_batch_size, global_batch_size, num_samples)


def stream_ids(seed: int, start: int, count: int, num_samples: int) -> np.ndarray:
    """Return the samples at positions start, ..., start + count - 1 of the stream.

    Shapes:  -> (count,) int64
    """
    positions = start + np.arange(count, dtype=np.int64)
    epochs, places = np.divmod(positions, num_samples)
    ids = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        ids[here] = permute(places[here], num_samples, seed, int(epoch))
    return ids


def permute(places: np.ndarray, num_samples: int, seed: int, epoch: int) -> np.ndarray:
    """Return the samples at `places` of an epoch's permutation.

    Source:  Black and Rogaway 2002, cycle walking: permute a number outside the range again until it is inside.
    """
    half_bits = max(1, (max(num_samples - 1, 1).bit_length() + 1) // 2)
    keys = _round_keys(seed, epoch)
    ids = _feistel(places.astype(np.uint64), half_bits, keys)
    while (outside := ids >= num_samples).any():
        ids[outside] = _feistel(ids[outside], half_bits, keys)
    return ids.astype(np.int64)


def _feistel(values: np.ndarray, half_bits: int, keys: np.ndarray) -> np.ndarray:
    """Permute the numbers below 4**half_bits. Source: Luby and Rackoff 1988."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """Scatter each number over 64 bits. Source: the finalizer of splitmix64, Steele et al. 2014."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


@lru_cache(maxsize=16)
def _round_keys(seed: int, epoch: int) -> np.ndarray:
    keys = [derive_seed(seed, "data order", epoch, number) for number in range(_NUM_ROUNDS)]
    return np.array(keys, dtype=np.uint64)
