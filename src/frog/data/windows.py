"""Windows: the samples a model trains on, cut from the shards of a split."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from frog.core.errors import DataError
from frog.data.manifest import prepare_again
from frog.data.prepared import Split


class Windows:
    """Window i of a shard is its tokens [i*T, i*T + T + 1): T inputs, and the labels, which are the inputs' successors.

    Consecutive windows share one token, so that each token but a shard's first is a label once. No window lies in two
    shards; what is left at a shard's end, less than a window, is not used.
    """

    def __init__(self, split: Split, sequence_length: int) -> None:
        self.sequence_length, self._split = sequence_length, split
        width = sequence_length + 1
        if sequence_length < 1 or max((len(shard) for shard in split.shards), default=0) < width:
            longest = max((len(shard) for shard in split.shards), default=0)
            raise DataError(
                f"{split.path}: the longest {split.name} shard has {longest} tokens, a window of "
                f"sequence_length={sequence_length} takes {width}",
                "use a sequence length from 1 up that fits, or prepare more text",
            )
        # Views on the mapped files: a row is read from disk when it is gathered.
        long_enough = [shard for shard in split.shards if len(shard) >= width]
        self._rows = [sliding_window_view(shard, width)[::sequence_length] for shard in long_enough]
        self._ends = np.cumsum([len(rows) for rows in self._rows])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def gather(self, ids_N: np.ndarray) -> np.ndarray:
        """The tokens of these windows.

        Shapes:  ids_N (N,) -> (N, T+1) int64
        Raises:  IndexError if an id is not that of a window; DataError if a token is not of the vocabulary.
        """
        if len(ids_N) and not 0 <= ids_N.min() <= ids_N.max() < len(self):
            raise IndexError(f"windows {ids_N.min()} to {ids_N.max()} were asked for, there are {len(self)}")
        tokens = self._gathered(ids_N)
        if tokens.size and tokens.max() >= self._split.vocab_size:
            path, name, size = self._split.path, self._split.name, self._split.vocab_size
            raise DataError(
                f"{path}: its {name} split has token {tokens.max()}, its vocabulary {size} tokens",
                prepare_again(path.name),
            )
        return tokens

    def _gathered(self, ids_N: np.ndarray) -> np.ndarray:
        if len(self._rows) == 1:
            alone: np.ndarray = self._rows[0][ids_N].astype(np.int64)
            return alone
        tokens = np.empty((len(ids_N), self.sequence_length + 1), dtype=np.int64)
        shard_N = np.searchsorted(self._ends, ids_N, side="right")
        for shard in np.unique(shard_N):
            here = shard_N == shard
            rows = self._rows[shard]
            tokens[here] = rows[ids_N[here] - (self._ends[shard] - len(rows))]
        return tokens
