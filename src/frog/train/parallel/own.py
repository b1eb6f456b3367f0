"""A strategy of one's own: `FromScratch` with a file's data parallelism, its errors explained, its calls recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frog.core.config import RunConfig
from frog.train.comm.local_shard import LocalShard, whole_copy
from frog.train.data import Batch
from frog.train.model.transformer import TinyTransformer
from frog.train.parallel.data.from_file import FromFile, explained
from frog.train.parallel.data.recorded import recorded
from frog.train.parallel.mesh import Mesh
from frog.train.parallel.scratch import FromScratch
from frog.train.parallel.strategy import Agreement, MakeOptimizer, Span, no_span


class OwnStrategy(FromScratch):
    """The strategy in `strategy.file`."""

    def __init__(
        self,
        config: RunConfig,
        mesh: Mesh,
        model: TinyTransformer,
        make_optimizer: MakeOptimizer,
        autocast: AbstractContextManager[Any] | None = None,
    ) -> None:
        assert config.strategy.file is not None
        self._path = Path(config.strategy.file)
        with self._calls(mesh):
            super().__init__(config, mesh, model, make_optimizer, autocast)
        (self._group,) = self.groups
        assert isinstance(self._group.data, FromFile)
        self._data = self._group.data

    @contextmanager
    def _calls(self, mesh: Mesh | None = None) -> Iterator[None]:
        """Explain the errors of the file, and record its collectives, inside this block."""
        axis = (mesh or self.mesh).data
        with explained(self._path, axis), recorded(self._path, axis):
            yield

    def forward_backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], span: Span = no_span) -> Tensor:
        with self._calls():
            return super().forward_backward(batch, scale, span)

    def reduce(self, loss: Tensor, stop: bool) -> Agreement:
        with self._calls():
            return super().reduce(loss, stop)

    def step(self, scaler: torch.amp.GradScaler) -> None:
        with self._calls():
            super().step(scaler)

    def zero(self) -> None:
        with self._calls():
            super().zero()

    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        with self._calls():
            return super().loss(tokens_BT, labels_BT)

    def loaded(self, shards: Sequence[LocalShard]) -> None:
        with self._calls():
            super().loaded(shards)

    def parameter_shards(self) -> list[LocalShard]:
        """Return the owned tensors, which are the authoritative weights, and the frozen parameters."""
        self._data.check_owned()
        frozen = [whole_copy(name, tensor, self.mesh.data) for name, tensor in self._data.frozen().items()]
        return self._shards_like(self._group, lambda tensor: tensor.detach()) + frozen

    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every full parameter. One rank may own them all, while the others own none and wait for it."""
        yield from self.assembled(self.parameter_shards()) if self._data.is_sharded else super().whole()

    def held(self) -> tuple[list[Tensor | None], list[Tensor | None]]:
        return self._data.held()
