"""Fully sharded data parallelism, as a strategy of one's own for Frog: docs/train/own-strategy.md has the interface."""

import torch
import torch.distributed as dist
from torch import nn


def build(model: nn.Module, group: dist.ProcessGroup) -> "FSDP":
    """Shard the model's trained parameters; all ranks have rank 0's weights."""
    return FSDP(model, group)


class Unit:
    """Parameters that are gathered and freed together: those of a layer, or all that are outside the layers."""

    def __init__(self, named: dict[str, nn.Parameter], group: dist.ProcessGroup) -> None:
        self.group, self.size = group, group.size()
        self.parameters = list(named.values())
        self.length = -(-sum(p.numel() for p in self.parameters) // self.size)  # of each rank's part
        start = group.rank() * self.length
        self.part = self.flat([p.data for p in self.parameters])[start : start + self.length].clone()
        self.whole = torch.empty(self.size * self.length)
        self.grad = None  # the part's, summed over the micro-batches
        self.owned, self.places = [], []
        at = 0
        for name, p in named.items():
            low, high = max(at, start), min(at + p.numel(), start + self.length)
            if low < high:
                self.places.append(slice(low - start, high - start))
                self.owned.append((name, low - at, nn.Parameter(self.part[self.places[-1]])))
            p.data = self.whole[at : at + p.numel()].view_as(p)
            at += p.numel()
            p.register_post_accumulate_grad_hook(self.arrived)
        self.free()

    def flat(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        return nn.functional.pad(flat, (0, self.size * self.length - len(flat)))

    def gather(self) -> None:
        if not self.is_here:
            self.whole.untyped_storage().resize_(4 * self.size * self.length)
            dist.all_gather_single(self.whole, self.part, group=self.group)
            self.is_here = True

    def free(self) -> None:
        """Release the bytes; tensors that autograd has saved find them again after the next gather."""
        self.whole.untyped_storage().resize_(0)
        self.is_here, self.num_arrived = False, 0

    def arrived(self, _: nn.Parameter) -> None:
        self.num_arrived += 1
        if self.num_arrived == len(self.parameters):
            self.finish()

    def finish(self) -> None:
        """Reduce the gradients of this backward pass, unless that has happened; free gradients and parameters."""
        if self.is_here:
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            part = torch.empty(self.length)
            dist.reduce_scatter_single(part, self.flat(grads), group=self.group)
            self.grad = part if self.grad is None else self.grad + part
            for p in self.parameters:
                p.grad = None
            self.free()

    def reduce(self) -> None:
        grad = torch.zeros(self.length) if self.grad is None else self.grad / self.size
        for (_, _, tensor), place in zip(self.owned, self.places, strict=True):
            tensor.grad = grad[place]
        self.grad = None


class FSDP:
    """Each rank keeps an equal part of the trained weights and of their gradients; hooks do the rest."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        layers = {f"layers.{number}": layer for number, layer in enumerate(model.layers)}
        named: dict[str, dict[str, nn.Parameter]] = {name: {} for name in ["", *layers]}
        for name, p in model.named_parameters():  # a shared weight occurs once
            if p.requires_grad:
                layer = ".".join(name.split(".")[:2])
                named[layer if layer in layers else ""][name] = p
        self.units = {name: Unit(some, group) for name, some in named.items() if some}
        for name, unit in self.units.items():
            self.watch(layers.get(name, model), unit, is_layer=name in layers)

    def watch(self, module: nn.Module, unit: Unit, is_layer: bool) -> None:
        def after_forward(module, inputs, output):
            if is_layer and output.requires_grad:
                output.register_hook(lambda _: unit.gather())
            if is_layer or not output.requires_grad:  # in training, the rest stays for the backward pass
                unit.free()

        module.register_forward_pre_hook(lambda module, inputs: unit.gather())
        module.register_forward_hook(after_forward)

    def owned(self) -> list[tuple[str, int, nn.Parameter]]:
        return [one for unit in self.units.values() for one in unit.owned]

    def after_backward(self, last: bool) -> None:
        for unit in self.units.values():  # those with a parameter that got no gradient
            unit.finish()

    def reduce(self) -> None:
        for unit in self.units.values():
            unit.reduce()

    def gather(self) -> None:
        """Do nothing: the next forward pass gathers the new weights."""
