# deepspeedai/DeepSpeed#8478: the gradient norm reduces over the experts' group only if an expert of this rank has
# a gradient.
import torch
import torch.distributed as dist
from torch import nn


def routed(rank, step):
    return not (rank == 2 and step == 5)  # stands for a router that sends this rank's expert nothing


def squared(grads):
    return torch.stack([grad.pow(2).sum() for grad in grads]).sum()


def grad_norm(model, expert_group):
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    experts = [grad for name, grad in grads.items() if name.startswith("expert")]
    total = squared([grad for name, grad in grads.items() if not name.startswith("expert")])
    if experts:  # here
        own = squared(experts)
        dist.all_reduce(own, group=expert_group)  # here
        total = total + own
    dist.all_reduce(total, op=dist.ReduceOp.MAX)  # here
    return total.sqrt()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    expert_group = dist.new_group(list(range(dist.get_world_size())))
    model = nn.ModuleDict({"dense": nn.Linear(8, 8), "expert": nn.Linear(8, 8)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        hidden = model["dense"](torch.ones(2, 8))
        if routed(rank, step):
            hidden = model["expert"](hidden)
        hidden.pow(2).mean().backward()
        grad_norm(model, expert_group)  # here
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
