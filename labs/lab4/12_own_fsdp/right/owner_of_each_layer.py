"""Each layer belongs whole to one rank, which broadcasts it when it is needed and sums its gradients."""

import torch
import torch.distributed as dist
from torch import nn


def build(model: nn.Module, group: dist.ProcessGroup) -> "Owners":
    return Owners(model, group)


class Owners:
    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.kept: dict[nn.Parameter, nn.Parameter | None] = {}  # the owner's own tensor
        self.owners: dict[nn.Parameter, int] = {}
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        for number, layer in enumerate(model.layers):
            self.share(layer, [p for p in layer.parameters() if p.requires_grad], number % self.size)
        rest = [p for p in self.names if p not in self.owners]
        self.share(model, rest, self.size - 1, is_root=True)

    def share(self, module: nn.Module, parameters: list[nn.Parameter], owner: int, is_root: bool = False) -> None:
        for p in parameters:
            self.owners[p] = owner
            self.kept[p] = nn.Parameter(p.data.clone()) if owner == self.rank else None
            self.free(p)

        def gather(*_: object) -> None:
            for p in parameters:
                self.gather_one(p)

        def after(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
            if output.requires_grad and is_root:
                return
            for p in parameters:
                self.free(p)
            if output.requires_grad:
                output.register_hook(gather)

        module.register_forward_pre_hook(gather)
        module.register_forward_hook(after)
        for p in parameters:
            p.register_post_accumulate_grad_hook(self.reduce_one)

    def free(self, p: nn.Parameter) -> None:
        p.data.untyped_storage().resize_(0)

    def gather_one(self, p: nn.Parameter) -> None:
        if p.data.untyped_storage().size() == 0:
            p.data.untyped_storage().resize_(p.numel() * p.element_size())
            if self.kept[p] is not None:
                p.data.copy_(self.kept[p].data)
            dist.broadcast(p.data, group_src=self.owners[p], group=self.group)

    def reduce_one(self, p: nn.Parameter) -> None:
        own = self.kept[p]
        dist.reduce(p.grad, group_dst=self.owners[p], group=self.group)
        if own is not None:
            own.grad = p.grad if own.grad is None else own.grad + p.grad
        p.grad = None
        self.free(p)

    def owned(self) -> list[tuple[str, int, nn.Parameter]]:
        return [(self.names[p], 0, own) for p, own in self.kept.items() if own is not None]

    def after_backward(self, last: bool) -> None:
        for p in self.kept:
            self.free(p)

    def reduce(self) -> None:
        for own in self.kept.values():
            if own is not None:
                own.grad = torch.zeros_like(own) if own.grad is None else own.grad / self.size

    def gather(self) -> None:
        pass
