"""Data parallelism by torch's FSDP2, alone or over DTensor tensor parallelism.

  ddp    `replicate`: every rank keeps everything; one all-reduce of each layer's gradient. It stands in for
         DistributedDataParallel where parameters are DTensors, which that cannot hold.
  zero2  `fully_shard` without resharding after the forward pass: parameters are gathered once a micro-batch, and stay
         whole until their backward pass is done; gradients and optimizer state are sharded.
  zero3  `fully_shard`: a layer is whole only while it works.

Each layer is one unit, the rest the root's. Every parameter is a DTensor, cut along its rows; with tensor parallelism
each tp rank's part of it is. Gradients are reduce-scattered in every micro-batch, which keeps them sharded; what hybrid
sharding and `replicate` add is done in the last one alone. All of it happens inside torch and is not in the
events. The weights stay in float32: `train.precision` works through autocast, as in the other strategies.

Source:  Zhao et al. 2023, "PyTorch FSDP"; the interface is torch.distributed.fsdp.fully_shard's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from frog.config import RunConfig
from frog.core.errors import ConfigError
from frog.data import Batch
from frog.parallel.grid import Grid
from frog.parallel.strategy import MakeOptimizer, Span, no_span
from frog.parallel.torch_impl.native import Native
from frog.parallel.torch_impl.tensor import loss_parallel_over, settle_gradients, split_model


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
"""What the entry in `frog.config.strategies` leads to."""


def spread(root: nn.Module, layers: Iterable[nn.Module], mesh: DeviceMesh, name: str) -> None:
    """Put FSDP2's hooks on each layer and on the root, in place.

    Raises:  ConfigError for "ddp" if this torch replicates over a mesh of two dimensions only.
    """
    if name == "ddp":
        check_replicate()
    for module in (*layers, root):
        if name == "ddp":
            replicate(module, mesh=mesh)
        else:
            fully_shard(module, mesh=mesh, reshard_after_forward=name == "zero3" and module is not root)


def check_replicate() -> None:
    """Raise ConfigError if torch's `replicate` takes no mesh of one dimension, as in torch 2.9."""
    if "mesh" not in inspect.signature(replicate).parameters:
        raise ConfigError(
            f"ddp by torch together with tensor or pipeline parallelism: `replicate` of torch {torch.__version__} "
            "does not take the mesh of the data ranks",
            "torch 2.11 or later, or --set strategy.implementation=frog",
        )


def reshard(roots: Iterable[nn.Module]) -> None:
    """Let go of whole parameters after a forward pass that no backward pass follows."""
    for root in roots:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
