"""Data parallelism with torch's DistributedDataParallel and its communication hooks; zero1: ZeroRedundancyOptimizer.

Plan of communication over `dp` (P bytes of gradients):
  ddp    during the last micro-batch's backward pass, one all-reduce for each bucket as it fills. P bytes.
  zero1  the same; each rank then updates some whole parameters, about as many elements as the other ranks, and
         broadcasts them: P bytes more, whereas `zero1.py` scatters and gathers and sends no more than ddp.
Traffic with `strategy.compression`:
  fp16, bf16  the buckets in half the bytes. The sum is computed in that precision.
  powersgd    two factors of rank 4 for each matrix (Vogels et al. 2019), after 3 steps, in which the buckets
              settle. The error of a step is added to the next one's gradient (error feedback). That memory is
              not part of a checkpoint: a resumed run begins without it, and with 3 full steps. On CPUs all gradients
              form one bucket: the hook waits on gloo's two threads for work of these same threads.
These change the numbers, so that a compressed run is close to one process but not equal to it.

The events record each bucket as one all-reduce of the bytes sent. A rank waits for its buckets inside the backward
pass; its waiting time starts when its last bucket was sent. zero1's broadcasts are not in the events.

Source:  Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from frog.core.config import RunConfig
from frog.train.comm import Axis
from frog.train.comm.axis import Note, Silent
from frog.train.comm.local_shard import LocalShard
from frog.train.optim.build_optimizer import begin_states
from frog.train.optim.tensors import by_decay
from frog.train.parallel.strategy import Agreement, MakeOptimizer
from frog.train.parallel.torch_impl.native import Native

POWER_SGD_RANK = 4
POWER_SGD_START = 3

Bucket = Any
"""torch.distributed.GradBucket, which torch does not export for type checkers."""

Hook = Callable[[Any, Bucket], torch.futures.Future[Tensor]]

_PARAMETERS = inspect.signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"
_NO_BUFFERS: dict[str, Any] = {_SYNC_BUFFERS: False}
"""Do not broadcast buffers. The option has two names: one in torch 2.13, one in torch 2.11 and earlier."""


class TorchDDP(Native):
    """DistributedDataParallel over the data ranks."""

    def _set_up(self, config: RunConfig, make_optimizer: MakeOptimizer) -> None:
        self.parameters = dict(self.model.named_parameters())
        self.hook: RecordedHook | None = None
        self._ddp: DistributedDataParallel | None = None
        if self.mesh.data.size > 1:
            self._wrap()
        if config.strategy.name == "zero1" and self.mesh.shard.size > 1:
            self._shard_optimizer(config, make_optimizer)
        else:
            self._begin_optimizer(self.parameters, make_optimizer)

    def _wrap(self) -> None:
        self._run = self._ddp = DistributedDataParallel(
            self.model,
            process_group=self.mesh.data.group,
            bucket_cap_mb=self._bucket_mb(),
            **_NO_BUFFERS,
            gradient_as_bucket_view=True,
            init_sync=False,
        )
        axis, compression = self.mesh.data, self.config.compression
        if compression != "off" or not isinstance(axis.record, Silent):
            hook = self.hook = RecordedHook(axis, compression)
            # A plain function without annotations, because torch checks the hook's name and types.
            self._ddp.register_comm_hook(hook.state, lambda state, bucket: hook.send(state, bucket))

    def _bucket_mb(self) -> float:
        if self.config.compression == "powersgd" and self.mesh.data.backend.runs_hooks_on_its_threads:
            return sum(p.nbytes for p in self.parameters.values()) / 1e6 + 1
        return self.config.bucket_mb

    def _shard_optimizer(self, config: RunConfig, make_optimizer: MakeOptimizer) -> None:
        kinds = by_decay(self.updated_tensors())
        # The first optimizer of each kind supplies the class and the settings of the groups.
        pattern = make_optimizer([kind[0] for kind in kinds])
        groups = [
            {**group, "params": [updated.tensor for updated in kind]}
            for group, kind in zip(pattern.param_groups, kinds, strict=True)
        ]
        known = inspect.signature(type(pattern)).parameters
        self.optimizer = zero = ZeroRedundancyOptimizer(
            groups,
            type(pattern),
            process_group=self.mesh.shard.group,
            **{name: value for name, value in pattern.defaults.items() if name in known},
        )
        begin_states(zero.optim, config.optimizer)
        zero.state = zero.optim.state  # its own stays empty: the state belongs to the inner optimizer

    def _micro_batch(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last or self._ddp is None else self._ddp.no_sync()

    def reduce(self, loss: Tensor, stop: bool) -> Agreement:
        if self.hook is not None:
            self.hook.record()
        return super().reduce(loss, stop)

    @torch.no_grad()
    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        with self._autocast:
            loss: Tensor = self.model(tokens_BT, labels_BT)
        return loss

    def _shards_of_moment(self, moment: str) -> list[LocalShard]:
        state = self.optimizer.state
        named = {name: state[p][moment] for name, p in self.parameters.items() if p in state}
        return self.shards(named, f"{moment}/", self.mesh.replicate if self.config.name == "zero1" else None)


build = TorchDDP
"""The class that the entry in `frog.core.config.strategies` refers to."""


class RecordedHook:
    """One of torch's communication hooks, which also records its traffic for the events."""

    def __init__(self, axis: Axis, compression: str) -> None:
        self._axis, self._launched_ns = axis, 0
        self._sent: list[_Sent] = []
        group = axis.group or dist.group.WORLD
        self.state: Any = group
        self._hook: Hook = default_hooks.allreduce_hook
        if compression == "powersgd":
            self.state = PowerSGDState(group, POWER_SGD_RANK, POWER_SGD_START)
            self._hook = powerSGD_hook
        elif compression != "off":
            self._hook = default_hooks.fp16_compress_hook if compression == "fp16" else default_hooks.bf16_compress_hook
        self._half = compression in ("fp16", "bf16")

    def send(self, state: Any, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Handle a full bucket for DistributedDataParallel. Not being torch's own, it may use bf16 with gloo."""
        before = self._compressed()
        future = self._hook(state, bucket)
        buffer = bucket.buffer()
        elements = self._compressed() - before or buffer.numel()
        num_bytes = elements * (2 if self._half else buffer.element_size())
        sent = _Sent(self._axis.record("all_reduce", self._axis.name, num_bytes))
        self._sent.append(sent)
        self._launched_ns = time.monotonic_ns()
        return future.then(sent.arrived)

    def _compressed(self) -> int:
        """Return how many elements PowerSGD has sent since it began."""
        return self.state.total_numel_after_compression if isinstance(self.state, PowerSGDState) else 0

    def record(self) -> None:
        """Write the step's buckets to the events, on the thread that writes them."""
        waited_until_ns = self._launched_ns
        for sent in self._sent:
            sent.note.done(sent.end_ns, max(0, sent.end_ns - waited_until_ns))
            waited_until_ns = max(waited_until_ns, sent.end_ns)
        self._sent.clear()


class _Sent:
    """A bucket that was sent."""

    def __init__(self, note: Note) -> None:
        self.note, self.end_ns = note, 0

    def arrived(self, future: torch.futures.Future[Tensor]) -> Tensor:
        self.end_ns = time.monotonic_ns()
        return future.value()
