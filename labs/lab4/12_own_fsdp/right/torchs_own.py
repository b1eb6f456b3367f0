"""torch's own fully_shard: each rank owns its rows of every parameter."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def build(model: nn.Module, group: dist.ProcessGroup) -> "FSDP":
    return FSDP(model, group)


class FSDP:
    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        frozen = {p for p in model.parameters() if not p.requires_grad}
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, ignored_params=frozen)
        self.model = fully_shard(model, mesh=mesh, ignored_params=frozen)
        self.parts = []
        for name, p in model.named_parameters():
            if p.requires_grad:
                rows = -(-p.shape[0] // group.size())
                part = nn.Parameter(p.to_local().detach())  # a view of the shard
                self.parts.append((name, group.rank() * rows * p[:1].numel(), p, part))

    def owned(self) -> list[tuple[str, int, nn.Parameter]]:
        return [(name, start, part) for name, start, _, part in self.parts if part.numel()]

    def reduce(self) -> None:
        for _, _, p, part in self.parts:
            part.grad = torch.zeros_like(part) if p.grad is None else p.grad.to_local()

    def gather(self) -> None:
        self.model.reshard()

    def zero(self) -> None:
        for _, _, p, part in self.parts:
            p.grad = part.grad = None
