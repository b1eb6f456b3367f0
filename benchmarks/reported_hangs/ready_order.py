# deepspeedai/DeepSpeed#2343: gradients are reduced by hooks as soon as they are ready, and the forward runs its
# branches in another order on one rank, so that they are ready in another order.
import torch
import torch.distributed as dist
from torch import nn


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.Parameter(torch.ones(4))
        self.wide = nn.Parameter(torch.ones(4, 9))

    def forward(self, first, second):
        def left():
            return (first * self.narrow).sum()

        def right():
            return (second @ self.wide).sum()

        if dist.get_rank() == 0:  # here
            a, b = left(), right()  # here
        else:
            b, a = right(), left()  # here
        return a + b


class ReduceWhenReady:
    """Averages each gradient in the backward, like the second stage of ZeRO."""

    def __init__(self, model):
        self.model, self.handles = model, []

    def __enter__(self):
        for parameter in self.model.parameters():
            self.handles.append(parameter.register_post_accumulate_grad_hook(self.reduce))
        return self

    def reduce(self, parameter):
        dist.all_reduce(parameter.grad)  # here
        parameter.grad /= dist.get_world_size()

    def __exit__(self, *unused):
        for handle in self.handles:
            handle.remove()


def main():
    dist.init_process_group("gloo")
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ReduceWhenReady(model):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4), torch.randn(4)).backward()  # here
            optimizer.step()
    dist.destroy_process_group()


main()
