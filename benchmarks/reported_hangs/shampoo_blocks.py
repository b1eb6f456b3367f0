# facebookresearch/optimizers#149: a rank without gradients in a group of parameters leaves out the update of that
# group, which gathers the blocks that each rank has preconditioned.
import torch
import torch.distributed as dist
from torch import nn


class Distributor:
    def __init__(self, parameters):
        self.parameters, self.world = parameters, dist.get_world_size()

    def update_params(self, directions):
        flat = torch.cat([direction.flatten() for direction in directions])
        blocks = [torch.empty_like(flat) for _ in range(self.world)]
        dist.all_gather(blocks, flat)  # here
        mean = torch.stack(blocks).mean(0)
        for parameter, part in zip(self.parameters, mean.split([p.numel() for p in self.parameters]), strict=True):
            parameter.data -= 0.1 * part.view_as(parameter)


class Shampoo(torch.optim.Optimizer):
    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.1})
        self.distributors = [Distributor(group["params"]) for group in self.param_groups]

    @torch.no_grad()
    def step(self):
        for group, distributor in zip(self.param_groups, self.distributors, strict=True):  # here
            if all(parameter.grad is None for parameter in group["params"]):  # here
                continue  # here
            distributor.update_params([self.direction(parameter) for parameter in group["params"]])  # here

    def direction(self, parameter):
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        return gradient / (gradient.norm() + 1e-6)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.image = nn.Linear(4, 3), nn.Linear(6, 3)

    def forward(self, text, image):
        out = self.text(text)
        return out if image is None else out + self.image(image)


def main():
    dist.init_process_group("gloo")
    rank, model = dist.get_rank(), Tower()
    optimizer = Shampoo([{"params": list(model.image.parameters())}, {"params": list(model.text.parameters())}])
    for step in range(5):
        image = None if rank == 2 and step == 2 else torch.randn(2, 6)
        optimizer.zero_grad()
        model(torch.randn(2, 4), image).square().mean().backward()
        optimizer.step()  # here
    dist.destroy_process_group()


main()
