# kyuz0/amd-strix-halo-llm-finetuning#6: rank 0 alone saves a sharded model, which gathers, while the others have
# ended.
import torch
import torch.distributed as dist
from torch import nn


class Sharded(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.shards = nn.ParameterList(torch.randn(8 // world, 8) for _ in range(3))

    def full_state(self):
        state = {}
        for number, shard in enumerate(self.shards):
            parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, shard.detach())  # here
            state[number] = torch.cat(parts)
        return state


class Trainer:
    def __init__(self, model):
        self.model = model

    def train(self, steps):
        for _ in range(steps):
            grad = torch.ones(24)
            dist.all_reduce(grad)

    def save_model(self, path):
        torch.save(self.model.full_state(), path)  # here


def main():
    dist.init_process_group("gloo")
    is_main = dist.get_rank() == 0
    trainer = Trainer(Sharded(dist.get_world_size()))
    trainer.train(6)
    if is_main:  # here
        trainer.save_model("model.pt")  # here
    print("done", flush=True)


main()
