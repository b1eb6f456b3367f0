# EleutherAI/bergson#380: only the first rank saves the optimizer's state, of which each rank has a shard.
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(width=8):
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def save_optimizer_state(model, optimizer, path):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(model, optimizer, options=options)  # here
    torch.save(state, path)


class Run:
    def __init__(self):
        self.model = build()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(3, 8)).square().mean().backward()  # here
        self.optimizer.step()

    def __iter__(self):
        for number in range(1, 7):
            self.step()  # here
            yield number


def main():
    dist.init_process_group("gloo")
    run = Run()
    for number in run:  # here
        if number % 3 == 0 and dist.get_rank() == 0:  # here
            save_optimizer_state(run.model, run.optimizer, f"optimizer_{number}.pt")  # here
    dist.destroy_process_group()


main()
