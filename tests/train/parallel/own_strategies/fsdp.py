"""FSDP: a layer's parameters exist only while it computes. Hooks gather and free them; gradients are scattered."""

import torch
import torch.distributed as dist
from torch import nn


def build(model, group):
    return FSDP(model, group)


class Unit:
    """The parameters of one layer, or those outside of all layers."""

    def __init__(self, named, group):
        self.group, self.size, rank = group, group.size(), group.rank()
        self.named = named
        self.numel = sum(p.numel() for p in named.values())
        self.length = -(-self.numel // self.size)
        start, end = rank * self.length, (rank + 1) * self.length
        whole = self.padded(p.data for p in named.values())
        self.shard, self.grad = whole[start:end].clone(), torch.zeros(self.length)
        self.tensors, at = [], 0
        for name, p in named.items():
            low, high = max(at, start), min(at + p.numel(), end)
            if low < high:
                tensor = nn.Parameter(self.shard[low - start : high - start])
                tensor.grad = self.grad[low - start : high - start]
                self.tensors.append((name, low - at, tensor))
            at += p.numel()
        self.whole = torch.empty(self.size * self.length)
        at = 0
        for p in named.values():
            p.data = self.whole[at : at + p.numel()].view_as(p)
            at += p.numel()
        self.is_here = True
        self.free()
        self.missing = len(named)
        for p in named.values():
            p.register_post_accumulate_grad_hook(self.arrived)

    def padded(self, tensors):
        flat = torch.cat([x.flatten() for x in tensors])
        return torch.nn.functional.pad(flat, (0, self.size * self.length - self.numel))

    def gather(self):
        if not self.is_here:
            self.whole.untyped_storage().resize_(4 * self.size * self.length)
            with torch.no_grad():
                dist.all_gather_into_tensor(self.whole, self.shard, group=self.group)
            self.is_here = True

    def free(self):
        self.whole.untyped_storage().resize_(0)
        self.is_here = False

    def arrived(self, _):
        self.missing -= 1
        if self.missing == 0:
            self.missing = len(self.named)
            mine = torch.empty(self.length)
            dist.reduce_scatter_tensor(mine, self.padded(p.grad for p in self.named.values()), group=self.group)
            self.grad += mine
            for p in self.named.values():
                p.grad = None
            self.free()


class FSDP:
    def __init__(self, model, group):
        self.size = group.size()
        of_unit = {}
        for name, p in model.named_parameters():
            if p.requires_grad:
                layer = ".".join(name.split(".")[:2]) if name.startswith("layers.") else ""
                of_unit.setdefault(layer, {})[name] = p
        self.units = {layer: Unit(named, group) for layer, named in of_unit.items()}
        for layer, unit in self.units.items():
            self.watch(model.get_submodule(layer), unit)

    def watch(self, module, unit):
        module.register_forward_pre_hook(lambda module, inputs: unit.gather())

        def after_forward(module, inputs, output):
            if not output.requires_grad:
                unit.free()  # evaluation
            elif unit is not self.units[""]:  # the root stays for the backward pass
                unit.free()
                output.register_hook(lambda grad: unit.gather())

        module.register_forward_hook(after_forward)

    def owned(self):
        return [owned for unit in self.units.values() for owned in unit.tensors]

    def reduce(self):
        for unit in self.units.values():
            unit.grad /= self.size

    def gather(self):
        pass

    def zero(self):
        for unit in self.units.values():
            unit.grad.zero_()
