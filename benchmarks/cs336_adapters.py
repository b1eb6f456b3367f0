"""Adapters of Stanford CS336, assignment 2, to the labs' references. `cs336.py` copies this file into a checkout."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def reference(exercise: str) -> ModuleType:
    """Import the one file of an exercise's reference."""
    (path,) = (Path(os.environ["FROG_LABS"]) / exercise / "reference").glob("*.py")
    spec = importlib.util.spec_from_file_location(exercise.replace("/", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def get_ddp(module: nn.Module) -> nn.Module:
    """Return the reference of 2.17: buckets of 1,000 bytes, so that the small models have several."""
    return reference("lab2/17_data_parallel").DataParallel(module, bucket_bytes=1000)  # type: ignore[no-any-return]


def ddp_on_after_backward(ddp_model: Any, optimizer: torch.optim.Optimizer) -> None:
    ddp_model.finish()


class ShardedOptimizer(torch.optim.Optimizer):
    """The reference of 4.2, with any optimizer that updates each element by itself."""

    def __init__(self, params: Any, optimizer_cls: type[torch.optim.Optimizer], **kwargs: Any) -> None:
        params = list(params)
        super().__init__(params, kwargs)
        holder = nn.ParameterList(params)
        self.sharded = reference("lab4/02_shard_optimizer").ShardedAdam(holder, lr=kwargs["lr"])
        self.sharded.adam = optimizer_cls([self.sharded.shard], **kwargs)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.sharded.step()


def get_sharded_optimizer(
    params: Any, optimizer_cls: type[torch.optim.Optimizer], **kwargs: Any
) -> torch.optim.Optimizer:
    return ShardedOptimizer(params, optimizer_cls, **kwargs)


class FSDP(nn.Module):
    """The reference of 4.4 for each Linear and Embedding, and the one of 2.1 for the rest, which stays on all ranks."""

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None) -> None:
        super().__init__()
        self.module, self.sizes = module, {name: p.shape for name, p in module.named_parameters()}
        gather = reference("lab4/04_gather_and_free")
        if compute_dtype is not None:
            gather.Sharded = in_dtype(gather.Sharded, compute_dtype)
        self.shards: dict[str, nn.Parameter] = {}
        for name, layer in module.named_modules():
            if type(layer).__name__ in ("Linear", "Embedding"):
                self.shards |= {f"{name}.{own}": shard for own, shard in gather.shard_model(layer).items()}
        self.copies = {name: p for name, p in module.named_parameters() if name not in self.shards}
        self.names = list(self.sizes)
        module.named_parameters = lambda *_, **__: iter(self.held().items())  # type: ignore[assignment]

    def held(self) -> dict[str, nn.Parameter]:
        """Return what this rank keeps of each parameter."""
        return {name: (self.shards | self.copies)[name] for name in self.names}

    def parameters(self, recurse: bool = True) -> Any:
        return iter(self.held().values())

    def forward(self, *inputs: Tensor) -> Any:
        return self.module(*inputs)

    def finish(self) -> None:
        reference("lab2/01_average_gradients").average_gradients(nn.ParameterList(self.copies.values()))

    def gather(self) -> dict[str, Tensor]:
        whole = {name: p.data for name, p in self.copies.items()}
        for name, shard in self.shards.items():
            parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, shard.detach())
            whole[name] = torch.cat(parts)[: self.sizes[name].numel()].view(self.sizes[name])
        return whole


def in_dtype(kind: Any, dtype: torch.dtype) -> Any:
    """Extend 4.4's reference, which computes in float32: weights are cast before they are sent, as 4.6's are."""

    class Cast(kind):  # type: ignore[misc]
        def __init__(self, parameter: nn.Parameter) -> None:
            super().__init__(parameter)
            self.whole = torch.empty(len(self.whole), dtype=dtype)
            parameter.data = self.whole[: parameter.numel()].view(parameter.shape)
            self.free()

        def gather(self) -> None:
            self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.itemsize)
            dist.all_gather(list(self.whole.split(self.numel)), self.shard.data.to(dtype))

    return Cast


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None = None) -> nn.Module:
    return FSDP(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model: Any, optimizer: torch.optim.Optimizer) -> None:
    fsdp_model.finish()


def fsdp_gather_full_params(fsdp_model: Any) -> dict[str, Tensor]:
    return fsdp_model.gather()  # type: ignore[no-any-return]
