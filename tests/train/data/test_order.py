"""The order of samples: one permutation per epoch, computed only from (seed, epoch, step)."""

from __future__ import annotations

import numpy as np
import pytest

from frog.train.data import sample_ids
from frog.train.data.sample_order import permute, stream_ids


@pytest.mark.parametrize("num_samples", [1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000, 4097, 70_000])
def test_each_epoch_is_a_permutation_of_the_samples(num_samples: int) -> None:
    for epoch in (0, 1, 7):
        ids = permute(np.arange(num_samples), num_samples, seed=3, epoch=epoch)
        np.testing.assert_array_equal(np.sort(ids), np.arange(num_samples))


def test_epochs_and_seeds_have_different_orders() -> None:
    places = np.arange(1000)
    orders = [permute(places, 1000, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    for number, one in enumerate(orders):
        assert all((one != other).mean() > 0.98 for other in orders[number + 1 :])
        assert (one != places).mean() > 0.98


def test_sample_order_looks_random() -> None:
    """Places and samples are uncorrelated, adjacent places are far apart, and each sample comes first in some epoch."""
    ids = permute(np.arange(50_000), 50_000, seed=11, epoch=2)
    assert abs(np.corrcoef(np.arange(50_000), ids)[0, 1]) < 0.02
    assert abs(np.corrcoef(ids[:-1], ids[1:])[0, 1]) < 0.02
    firsts = [int(permute(np.array([0]), 10, seed=1, epoch=epoch)[0]) for epoch in range(2000)]
    counts = np.bincount(firsts, minlength=10)
    # 9 degrees of freedom: chi-squared exceeds 28 once in a thousand.
    assert ((counts - 200) ** 2 / 200).sum() < 28


def test_steps_cover_the_epochs_in_order() -> None:
    """Batches of 4 from 10 samples: an epoch ends inside a step, without skipped or repeated samples."""
    stream = np.concatenate([sample_ids(5, step, 4, 10) for step in range(1, 11)])
    assert stream.dtype == np.int64
    for epoch in stream.reshape(4, 10):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(10))
    np.testing.assert_array_equal(stream, stream_ids(5, 0, 40, 10))


def test_batch_may_be_larger_than_an_epoch() -> None:
    ids = sample_ids(5, 2, 12, 5)
    np.testing.assert_array_equal(ids, stream_ids(5, 12, 12, 5))
    np.testing.assert_array_equal(np.sort(ids[3:8]), np.arange(5))


def test_distant_step_is_computed_directly() -> None:
    late = sample_ids(9, 10**12, 8, 10**9)
    assert len(set(late.tolist())) == 8
    assert 0 <= late.min() <= late.max() < 10**9
    np.testing.assert_array_equal(late, sample_ids(9, 10**12, 8, 10**9))


def test_sample_order_matches_recorded_values() -> None:
    """Literal numbers: a change of the order would silently change the data of resumed runs."""
    assert sample_ids(1337, 1, 8, 1000).tolist() == [740, 376, 801, 270, 361, 486, 915, 718]
