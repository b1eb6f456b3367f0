# hpcaitech/ColossalAI#4914: the load of experts is balanced per layer, and ends with a barrier of all processes, also
# of pipeline stages without such a layer.
import torch
import torch.distributed as dist
from torch import nn


class SparseMLP(nn.Module):
    def __init__(self, width, enable_load_balance=True):
        super().__init__()
        self.gate, self.enable_load_balance = nn.Linear(width, 2), enable_load_balance

    def balance(self, group):
        load = torch.rand(2)
        dist.all_reduce(load, group=group)
        return load


class DenseMLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)


def apply_load_balance(model, group):
    """Apply load balance to every sparse layer."""

    def recursive(module):
        count = 0
        for child in module.children():
            if isinstance(child, SparseMLP) and child.enable_load_balance:  # here
                child.balance(group)
                count += 1
                dist.barrier()  # here
            count += recursive(child)  # here
        return count

    return recursive(model)  # here


def stage(rank):
    kinds = (DenseMLP, DenseMLP) if rank < 2 else (SparseMLP, DenseMLP)
    return nn.ModuleDict({str(number): kind(6) for number, kind in enumerate(kinds)})


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = stage(rank)
    for _ in range(3):
        gradient = torch.randn(13)
        dist.all_reduce(gradient, group=groups[rank // 2])
        apply_load_balance(model, groups[rank // 2])  # here
        loss = torch.ones(4, 2)
        dist.all_reduce(loss)  # here
    dist.destroy_process_group()


main()
