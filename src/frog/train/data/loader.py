"""The loader: prepares the batches of one rank in a background thread, ahead of the steps.

Shapes: A micro-batches (grad_accum), B sequences a micro-batch, T time (sequence), N = A*B samples of this rank.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from frog.core.config.model import IGNORED_LABEL
from frog.core.config.run_config import batch_problem
from frog.core.errors import ShapeError
from frog.train.data.sample_order import stream_ids
from frog.train.data.windows import Windows

_BLOCK_IDS = 4096

FILLING = -1
"""Sample id of a padding row, which is ignored."""


@dataclass(frozen=True)
class Batch:
    """The data of one rank for one optimizer step."""

    step: int
    ids_N: np.ndarray
    """Sample ids, in the order of the micro-batches."""
    tokens_ABT: Tensor
    labels_ABT: Tensor
    """The next token for each of `tokens_ABT`; -100 for positions without a label."""
    loss_weight_A: tuple[float, ...]
    """Weight of each micro-batch's mean loss: its number of labels divided by the mean over ranks. They sum to 1 if all
    ranks have the same number of labels, and always to 1 on average over the ranks."""


class Loader:
    """Iterator over steps start_step + 1, start_step + 2, ... without end; close it, or use it as a context manager.

    A rank gets the contiguous slice [rank * N, rank * N + N) of the step's samples, and its micro-batches are
    contiguous slices of that: the micro-batches of one rank with grad_accum 4 equal the batches of four ranks.
    The step is the position that a checkpoint saves.
    With `uneven`, the batch need not divide evenly: ranks and micro-batches may then differ by one sample, and are
    padded with rows without labels and with sample id -1.

    Raises:  ShapeError if the global batch does not divide into ranks and micro-batches, or is smaller than their
             number. `next` raises the errors of the background thread.
    """

    def __init__(
        self,
        windows: Windows,
        *,
        seed: int,
        global_batch_size: int,
        dp_rank: int,
        dp_size: int,
        grad_accum: int,
        start_step: int = 0,
        device: torch.device | None = None,
        prefetch: int = 2,
        uneven: bool = False,
    ) -> None:
        if problem := batch_problem(global_batch_size, dp_size, grad_accum, uneven=uneven):
            raise ShapeError(problem, f"set train.global_batch_size to a multiple of {dp_size * grad_accum}")
        if not 0 <= dp_rank < dp_size:
            raise ShapeError(f"dp_rank={dp_rank} is outside dp_size={dp_size}")
        self._windows, self._seed = windows, seed
        self._global_batch_size, self._grad_accum = global_batch_size, grad_accum
        cuts = [global_batch_size * rank // dp_size for rank in (dp_rank, dp_rank + 1)]
        self._slice = slice(*cuts)
        mine = cuts[1] - cuts[0]
        self._counts_A = [mine * (a + 1) // grad_accum - mine * a // grad_accum for a in range(grad_accum)]
        self._share_A = tuple(count * dp_size / global_batch_size for count in self._counts_A)
        self._num_rows = -(-global_batch_size // (dp_size * grad_accum))
        """Rows of a micro-batch."""
        self._block_steps = max(1, _BLOCK_IDS // global_batch_size)
        self._block_ids = self._block_steps * global_batch_size
        self._block: np.ndarray | None = None
        self._device = device or torch.device("cpu")
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=max(1, prefetch))
        self._closed = Event()
        self._thread = Thread(target=self._produce, args=(start_step,), name="frog-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        if self._closed.is_set():
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, BaseException):
            self.close()
            raise item
        return self._on_device(item)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the background thread and drop its batches; a second call does nothing."""
        self._closed.set()
        while self._thread.is_alive():
            # The thread may be blocked on a full queue: empty the queue until the thread has ended.
            while not self._ready.empty():
                self._ready.get_nowait()
            self._thread.join(timeout=0.01)

    def _produce(self, step: int) -> None:
        try:
            while not self._closed.is_set():
                step += 1
                self._ready.put(self._make(step))
        except BaseException as error:  # the consumer must receive any error
            self._ready.put(error)

    def _make(self, step: int) -> Batch:
        """Gather one batch with numpy only: torch's copies would start a second thread pool in this thread."""
        ids_N = self._filled(self._global_ids(step)[self._slice])
        tokens_NT = self._windows.gather(np.maximum(ids_N, 0))
        labels_NT = tokens_NT[:, 1:].copy()
        labels_NT[ids_N == FILLING] = IGNORED_LABEL
        shape = (self._grad_accum, self._num_rows, self._windows.sequence_length)
        return Batch(step, ids_N, self._tensor(tokens_NT[:, :-1], shape), self._tensor(labels_NT, shape), self._share_A)

    def _filled(self, ids_N: np.ndarray) -> np.ndarray:
        """Return the samples of this rank, padded to micro-batches of equal size."""
        if len(ids_N) == self._grad_accum * self._num_rows:
            return ids_N
        filled = np.full((self._grad_accum, self._num_rows), FILLING, dtype=ids_N.dtype)
        filled[np.arange(self._num_rows) < np.array(self._counts_A)[:, None]] = ids_N
        return filled.reshape(-1)

    def _global_ids(self, step: int) -> np.ndarray:
        """Return `sample_ids` of this step, computed for many steps together to reduce the overhead of numpy calls."""
        place = (step - 1) % self._block_steps
        if place == 0 or self._block is None:
            start = (step - 1 - place) * self._global_batch_size
            self._block = stream_ids(self._seed, start, self._block_ids, len(self._windows))
        return self._block[place * self._global_batch_size :][: self._global_batch_size]

    def _tensor(self, values: np.ndarray, shape: tuple[int, int, int]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values).reshape(shape))
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _on_device(self, batch: Batch) -> Batch:
        """Copy on the consumer's stream, so that only the step's kernels wait for the copy."""
        if self._device.type == "cpu":
            return batch
        pinned = self._device.type == "cuda"  # only copies from pinned memory may be asynchronous
        tokens_ABT = batch.tokens_ABT.to(self._device, non_blocking=pinned)
        labels_ABT = batch.labels_ABT.to(self._device, non_blocking=pinned)
        return Batch(batch.step, batch.ids_N, tokens_ABT, labels_ABT, batch.loss_weight_A)
