"""Windows: the samples of a split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frog.core.errors import DataError
from frog.train.data import PreparedData, Windows
from frog.train.data.manifest import Shard
from frog.train.data.prepared import Split


@pytest.fixture
def counting(tmp_path: Path) -> Split:
    """Return a split with two usable shards, 0 to 20 and 100 to 112, and one that is too short for a window."""
    shards = []
    for name, tokens in (("a", np.arange(21)), ("b", np.arange(100, 113)), ("c", np.arange(200, 203))):
        tokens.astype("<u2").tofile(tmp_path / f"{name}.bin")
        np.array([0], "<i8").tofile(tmp_path / f"{name}.offsets.bin")
        names = {"tokens": f"{name}.bin", "offsets": f"{name}.offsets.bin"}
        shards.append(Shard(**names, num_tokens=len(tokens), num_documents=1))
    return Split(tmp_path, "train", shards, np.dtype("<u2"), 300)


def test_windows_share_one_token_and_do_not_cross_shards(counting: Split) -> None:
    windows = Windows(counting, 5)
    assert len(windows) == 4 + 2
    gathered = windows.gather(np.arange(6))
    assert gathered.dtype == np.int64
    np.testing.assert_array_equal(gathered[:, 0], [0, 5, 10, 15, 100, 105])
    np.testing.assert_array_equal(gathered, gathered[:, :1] + np.arange(6))


def test_last_window_ends_with_the_shard(counting: Split) -> None:
    assert len(Windows(counting, 4)) == 5 + 3
    assert len(Windows(counting, 20)) == 1
    np.testing.assert_array_equal(Windows(counting, 20).gather(np.array([0])), [np.arange(21)])


def test_gather_accepts_any_order_and_repetition(counting: Split) -> None:
    windows = Windows(counting, 5)
    assert windows.gather(np.array([5, 0, 5, 4]))[:, 0].tolist() == [105, 0, 105, 100]
    assert windows.gather(np.array([], dtype=np.int64)).shape == (0, 6)


def test_every_token_except_a_shards_first_is_a_label_once(data: PreparedData) -> None:
    split = data.split("train")
    windows = Windows(split, 16)
    labels = windows.gather(np.arange(len(windows)))[:, 1:].reshape(-1)
    used = [shard[1 : (len(shard) - 1) // 16 * 16 + 1] for shard in split.shards]
    np.testing.assert_array_equal(labels, np.concatenate(used))


def test_window_ids_out_of_range_raise_index_error(counting: Split) -> None:
    windows = Windows(counting, 5)
    for ids in ([6], [-1]):
        with pytest.raises(IndexError, match="there are 6"):
            windows.gather(np.array(ids))


def test_too_short_split_error_names_both_lengths(counting: Split) -> None:
    with pytest.raises(DataError, match=r"longest train shard has 21 tokens, .* sequence_length=21 needs 22"):
        Windows(counting, 21)
    with pytest.raises(DataError, match="sequence_length=0 needs 1"):
        Windows(counting, 0)
