# OpenTSLM/OpenTSLM#49: gradients are averaged by hand, only those that a parameter has, and a rank whose batch skips a
# module has fewer.
import torch
import torch.distributed as dist
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(4, 8)
        self.text = nn.Embedding(20, 8)

    def forward(self, series, words):
        text = self.text(words).mean(0)
        if series is None:
            return text
        return text + self.patches(series).mean(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(8, 1)

    def compute_loss(self, batch):
        return self.head(self.encoder(*batch)).square().sum()


def average_gradients(model):
    for p in model.parameters():  # here
        if p.grad is not None:  # here
            dist.all_reduce(p.grad)  # here
            p.grad /= dist.get_world_size()


def make_batch(rank, step):
    words = torch.randint(0, 20, (5,))
    has_series = not (rank == 1 and step == 2)
    return (torch.randn(3, 4) if has_series else None), words


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(5):
        optimizer.zero_grad(set_to_none=True)
        model.compute_loss(make_batch(rank, step)).backward()
        average_gradients(model)  # here
        optimizer.step()
    dist.destroy_process_group()


main()
