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
        long_enough = [number for number, shard in enumerate(split.shards) if len(shard) >= width]
        self._rows = [sliding_window_view(split.shards[number], width)[::sequence_length] for number in long_enough]
        self._files = [split.files[number] for number in long_enough]
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
        tokens = self._stored(ids_N)
        if tokens.size and tokens.max() >= self._split.vocab_size:
            raise self._no_token(ids_N, tokens)
        whole: np.ndarray = tokens.astype(np.int64)
        return whole

    def _no_token(self, ids_N: np.ndarray, tokens: np.ndarray) -> DataError:
        """The first of these tokens that is not of the vocabulary, and where it lies."""
        row, column = np.argwhere(tokens >= self._split.vocab_size)[0]
        shard = int(np.searchsorted(self._ends, ids_N[row], side="right"))
        first = self._ends[shard] - len(self._rows[shard])
        place = (ids_N[row] - first) * self.sequence_length + column
        return DataError(
            f"{self._files[shard]}: token {place}: found {tokens[row, column]}, expected less than "
            f"{self._split.vocab_size}, the size of its vocabulary",
            prepare_again(self._split.path.name),
        )

    def _stored(self, ids_N: np.ndarray) -> np.ndarray:
        """The windows in the type of the files, which is a quarter as large: what looks at all of it is quick."""
        if len(self._rows) == 1:
            alone: np.ndarray = self._rows[0][ids_N]
            return alone
        tokens = np.empty((len(ids_N), self.sequence_length + 1), dtype=self._rows[0].dtype)
        shard_N = np.searchsorted(self._ends, ids_N, side="right")
        for shard in np.unique(shard_N):
            here = shard_N == shard
            rows = self._rows[shard]
            tokens[here] = rows[ids_N[here] - (self._ends[shard] - len(rows))]
        return tokens
