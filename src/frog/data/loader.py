"""The loader: the batches of one rank, step after step, ready before the step asks for them.

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

from frog.config.model import IGNORED_LABEL
from frog.config.run import batch_problem
from frog.core.errors import ShapeError
from frog.data.order import stream_ids
from frog.data.windows import Windows

_BLOCK_IDS = 4096

FILLING = -1
"""The sample id of a row that is there to make a batch whole, and counts nothing."""


@dataclass(frozen=True)
class Batch:
    """What one rank trains on in one optimizer step."""

    step: int
    ids_N: np.ndarray
    """The samples, micro-batch after micro-batch."""
    tokens_ABT: Tensor
    labels_ABT: Tensor
    """The token that follows each of `tokens_ABT`; -100 where there is none to be learned."""
    loss_weight_A: tuple[float, ...]
    """By what each micro-batch's mean loss counts: its labels divided by those of the mean rank. They sum to 1 if all
    ranks hold equally many, and to 1 on average over the ranks in any case."""


class Loader:
    """Iterates over steps start_step + 1, start_step + 2, ... without end; close it, or use it as a context.

    A rank takes the contiguous slice [rank * N, rank * N + N) of the step's samples, and its micro-batches are
    contiguous slices of that: one rank with grad_accum 4 sees as micro-batches what four ranks see.
    The position that a checkpoint keeps is the step.
    Where `uneven` is allowed the batch need not divide: ranks and micro-batches then differ by a sample, and are filled
    up with rows that have no label and the sample id -1.

    Raises:  ShapeError if the global batch does not divide into ranks and micro-batches, or does not give each one.
             What goes wrong while a batch is made is raised from `next`, on the thread that asks.
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
            raise ShapeError(f"dp_rank={dp_rank} lies outside dp_size={dp_size}")
        self._windows, self._seed = windows, seed
        self._global_batch_size, self._grad_accum = global_batch_size, grad_accum
        cuts = [global_batch_size * rank // dp_size for rank in (dp_rank, dp_rank + 1)]
        self._slice = slice(*cuts)
        mine = cuts[1] - cuts[0]
        self._counts_A = [mine * (a + 1) // grad_accum - mine * a // grad_accum for a in range(grad_accum)]
        self._share_A = tuple(count * dp_size / global_batch_size for count in self._counts_A)
        self._num_rows = -(-global_batch_size // (dp_size * grad_accum))
        """Of a micro-batch."""
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
        """End the background thread and drop what it made; a second call does nothing."""
        self._closed.set()
        while self._thread.is_alive():
            # The thread may wait for room in the queue: make some until it has seen the end.
            while not self._ready.empty():
                self._ready.get_nowait()
            self._thread.join(timeout=0.01)

    def _produce(self, step: int) -> None:
        try:
            while not self._closed.is_set():
                step += 1
                self._ready.put(self._make(step))
        except BaseException as error:  # whatever it is, the consumer must hear of it
            self._ready.put(error)

    def _make(self, step: int) -> Batch:
        """Gather one batch. With numpy alone: torch's copies would start a second pool of threads on this one."""
        ids_N = self._filled(self._global_ids(step)[self._slice])
        tokens_NT = self._windows.gather(np.maximum(ids_N, 0))
        labels_NT = tokens_NT[:, 1:].copy()
        labels_NT[ids_N == FILLING] = IGNORED_LABEL
        shape = (self._grad_accum, self._num_rows, self._windows.sequence_length)
        return Batch(step, ids_N, self._tensor(tokens_NT[:, :-1], shape), self._tensor(labels_NT, shape), self._share_A)

    def _filled(self, ids_N: np.ndarray) -> np.ndarray:
        """The samples of this rank, cut into micro-batches of equally many rows."""
        if len(ids_N) == self._grad_accum * self._num_rows:
            return ids_N
        filled = np.full((self._grad_accum, self._num_rows), FILLING, dtype=ids_N.dtype)
        filled[np.arange(self._num_rows) < np.array(self._counts_A)[:, None]] = ids_N
        return filled.reshape(-1)

    def _global_ids(self, step: int) -> np.ndarray:
        """`sample_ids` of this step, drawn for many steps at once: numpy's calls cost more than their work."""
        place = (step - 1) % self._block_steps
        if place == 0 or self._block is None:
            start = (step - 1 - place) * self._global_batch_size
            self._block = stream_ids(self._seed, start, self._block_ids, len(self._windows))
        return self._block[place * self._global_batch_size :][: self._global_batch_size]

    def _tensor(self, values: np.ndarray, shape: tuple[int, int, int]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values).reshape(shape))
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _on_device(self, batch: Batch) -> Batch:
        """Copy on the consumer's stream, so that the step's kernels wait for the copy and nothing else does."""
        if self._device.type == "cpu":
            return batch
        pinned = self._device.type == "cuda"  # only from pinned memory may a copy outlive the call
        tokens_ABT = batch.tokens_ABT.to(self._device, non_blocking=pinned)
        labels_ABT = batch.labels_ABT.to(self._device, non_blocking=pinned)
        return Batch(batch.step, batch.ids_N, tokens_ABT, labels_ABT, batch.loss_weight_A)
