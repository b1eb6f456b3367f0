"""Measure the memory that a learner's code holds: for an exercise's ranks.py."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of tensors that operations inside the `with` block allocate, backward included, until it is
    freed.

    A view and its base are one piece of memory, which lives as long as either. Not counted: memory that an operation
    allocates and frees again before it returns, and tensors that `torch.tensor` makes from Python's numbers.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        """Bytes that are live now, and the most at any time."""
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

    def sizes(self, without: Iterable[Tensor] = ()) -> list[int]:
        """Return the size of each live piece of memory, except those behind the tensors in `without`."""
        other = {tensor.untyped_storage()._cdata for tensor in without}
        return sorted(size for key, (_, size) in self._live.items() if key not in other)

    def settled(self, most: int, without: Iterable[Tensor] = (), num_looks: int = 200) -> list[int]:
        """Return the sizes once at most this many bytes are live, or after a number of looks.

        gloo's threads let go of a collective's tensors a moment after it has returned. Each look lets them run, and
        takes longer on a busy machine, so only a wrong solution needs all looks.
        """
        without = list(without)
        sizes = self.sizes(without)
        while sum(sizes) > most and num_looks > 0:
            time.sleep(0.01)
            sizes, num_looks = self.sizes(without), num_looks - 1
        return sizes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        before = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            if tensor.untyped_storage()._cdata not in before:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._live:
            return

        def freed(_: Any) -> None:
            self._live.pop(key, None)
            self.now -= size

        self._live[key] = weakref.ref(storage, freed), size
        self.now += size
        self.peak = max(self.peak, self.now)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
