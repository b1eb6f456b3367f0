"""Data parallelism with torch's FSDP2, alone or with DTensor tensor parallelism.

  ddp    `replicate`: every rank keeps everything; one all-reduce of each layer's gradient. It replaces
         DistributedDataParallel if parameters are DTensors, which DistributedDataParallel does not support.
  zero2  `fully_shard` without resharding after the forward pass: parameters are gathered once per micro-batch, and
         stay gathered until their backward pass is done; gradients and optimizer state are sharded.
  zero3  `fully_shard`: a layer is gathered only while it computes.

Each layer is one unit; the root has the other parameters. Every parameter is a DTensor, split along its rows, after
tensor parallelism has split it over tp. Gradients are reduce-scattered in every micro-batch, which keeps them sharded;
the reductions of hybrid sharding and `replicate` happen only in the last one. All of it happens inside torch and is not
in the events. The weights stay in float32: `train.precision` works through autocast, as in the other strategies.

Source:  Zhao et al. 2023, "PyTorch FSDP"; the interface is torch.distributed.fsdp.fully_shard's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from frog.core.config import RunConfig
from frog.train.data import Batch
from frog.train.parallel.grid import Grid
from frog.train.parallel.strategy import MakeOptimizer, Span, no_span
from frog.train.parallel.torch_impl.native import Native
from frog.train.parallel.torch_impl.torch_tensor import loss_parallel_over, settle_gradients, split_model


class TorchFSDP(Native):
    """`fully_shard` or `replicate` over the data ranks, DTensor over `tp`."""

    def _set_up(self, config: RunConfig, make_optimizer: MakeOptimizer) -> None:
        mesh, model = self.mesh, self.model
        grid = Grid(mesh, {"replicate": mesh.replicate, "shard": mesh.shard, "tp": mesh.tp})
        if (along_tp := grid.submesh("tp")) is not None:
            split_model(model, along_tp, self.config.sequence_parallel)
        if (along_data := grid.submesh("replicate", "shard")) is not None:
            spread(model, model.layers, along_data, self.config.name)
        self._begin_optimizer(dict(model.named_parameters()), make_optimizer)

    @property
    def _shards(self) -> bool:
        return self.config.name != "ddp"

    def forward_backward(self, batch: Batch, scale: Callable[[Tensor], Tensor], span: Span = no_span) -> Tensor:
        with loss_parallel_over(self.mesh.tp):
            loss = super().forward_backward(batch, scale, span)
        settle_gradients(self.parameters.values())
        return loss

    def _micro_batch(self, last: bool) -> AbstractContextManager[Any]:
        if isinstance(self.model, FSDPModule):
            self.model.set_is_last_backward(last)
            if self.config.name == "ddp":
                self.model.set_requires_gradient_sync(last)
            else:
                self.model.set_requires_all_reduce(last)
        return nullcontext()

    @torch.no_grad()
    def loss(self, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
        with loss_parallel_over(self.mesh.tp):
            loss = super().loss(tokens_BT, labels_BT)
        reshard([self.model])
        return loss


build = TorchFSDP
"""The class that the entry in `frog.core.config.strategies` refers to."""


def spread(root: nn.Module, layers: Iterable[nn.Module], mesh: DeviceMesh, name: str) -> None:
    """Apply FSDP2 to each layer and to the root, in place."""
    for module in (*layers, root):
        if name == "ddp":
            replicate(module, mesh=mesh)
        else:
            fully_shard(module, mesh=mesh, reshard_after_forward=name == "zero3" and module is not root)


def reshard(roots: Iterable[nn.Module]) -> None:
    """Free gathered parameters after a forward pass that no backward pass follows."""
    for root in roots:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
