# dylanyunlon/Neuron_SP#154: each rank decides by its own gradient norm whether it skips the optimizer's step, which
# scatters and gathers.
import torch
import torch.distributed as dist
from skip_step_controller import SkipController
from torch import nn


class Optimizer:
    def __init__(self, model, world):
        self.model, self.world = model, world

    def step(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)  # here
            parameter.data -= 0.01 * parameter.grad / self.world
        dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, controller = nn.Linear(10, 3), SkipController(limit=3.0)
    optimizer = Optimizer(model, world)
    for step in range(12):
        model.zero_grad()
        scale = 40.0 if (rank, step) == (2, 7) else 1.0
        loss = (model(torch.ones(2, 10)) * scale).mean()
        loss.backward()
        reported = loss.detach().clone()
        dist.all_reduce(reported)  # here
        should_skip = controller.update(model)  # here
        if not should_skip:  # here
            optimizer.step()  # here
    dist.destroy_process_group()


main()
