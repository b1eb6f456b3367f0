# deepspeedai/DeepSpeed#7998: a head is called as often as the rank's own output asks for, and each call gathers it.
import torch
import torch.distributed as dist
from torch import nn

OBJECTS = [[2, 2, 2, 2], [2, 2, 3, 2]]  # rank, step: objects that the model finds


class Gathered(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x):
        parts = [torch.empty(self.width) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.ones(self.width))  # here
        return x * torch.cat(parts).mean()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = Gathered(32), Gathered(8)

    def forward(self, x, count):
        features = self.backbone(x)  # here
        heads = [self.head(features) for _ in range(count)]  # here
        return torch.stack(heads).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    detector = Detector()
    for step in range(4):
        detector(torch.ones(5), OBJECTS[rank][step])  # here
    total = torch.zeros(40)
    dist.all_reduce(total)  # here
    dist.destroy_process_group()


main()
