"""Windows: the training samples of a model, from the shards of a split."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from frog.core.errors import DataError
from frog.train.data.manifest import prepare_again
from frog.train.data.prepared import Split


class Windows:
    """Window i of a shard is its tokens [i*T, i*T + T + 1): T inputs, and as labels the next token of each.

    Consecutive windows share one token, so every token except a shard's first is a label exactly once. No window spans
    two shards; an incomplete window at a shard's end is not used.
    """

    def __init__(self, split: Split, sequence_length: int) -> None:
        self.sequence_length, self._split = sequence_length, split
        width = sequence_length + 1
        if sequence_length < 1 or max((len(shard) for shard in split.shards), default=0) < width:
            longest = max((len(shard) for shard in split.shards), default=0)
            raise DataError(
                f"{split.path}: the longest {split.name} shard has {longest} tokens, but a window of "
                f"sequence_length={sequence_length} needs {width}",
                "use a shorter sequence length (at least 1), or prepare more text",
            )
        # Views of the mapped files: gathering a row reads it from disk.
        long_enough = [number for number, shard in enumerate(split.shards) if len(shard) >= width]
        self._rows = [sliding_window_view(split.shards[number], width)[::sequence_length] for number in long_enough]
        self._files = [split.files[number] for number in long_enough]
        self._ends = np.cumsum([len(rows) for rows in self._rows])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def gather(self, ids_N: np.ndarray) -> np.ndarray:
        """Return the tokens of these windows.

        Shapes:  ids_N (N,) -> (N, T+1) int64
        Raises:  IndexError if an id is out of range; DataError if a token is not in the vocabulary.
        """
        if len(ids_N) and not 0 <= ids_N.min() <= ids_N.max() < len(self):
            raise IndexError(f"windows {ids_N.min()} to {ids_N.max()} requested, but there are {len(self)}")
        tokens = self._stored(ids_N)
        if tokens.size and tokens.max() >= self._split.vocab_size:
            raise self._no_token(ids_N, tokens)
        whole: np.ndarray = tokens.astype(np.int64)
        return whole

    def _no_token(self, ids_N: np.ndarray, tokens: np.ndarray) -> DataError:
        """Return the error for the first token that is not in the vocabulary, with its position."""
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
        """Gather windows in the data type of the files, a quarter of the size, so that checks are fast."""
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
