"""Train DistributedDataParallel on the learner's library."""

import os
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

VOCAB, WIDTH, STEPS, RATE = 23, 13, 3, 0.1
BUCKET_MB = 0.002


class Network(nn.Module):
    """A tied weight, a frozen layer, a layer that one step does not use, and sizes that nothing divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 37)
        self.down = nn.Linear(37, WIDTH)
        self.extra = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor, uses_extra: bool) -> Tensor:
        h = torch.tanh(self.frozen(self.embedding(tokens)))
        h = h + self.down(torch.tanh(self.up(h)))
        if uses_extra:
            h = h + torch.tanh(self.extra(h))
        return self.head(h)


def make_model(seed: int) -> Network:
    model, generator = Network(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
    return model


def batch(case: dict[str, Any], step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(case["seed"] + 100 * step + rank)
    tokens = torch.randint(VOCAB, (case["samples"],), generator=generator)
    return tokens, (tokens * 5 + 1) % VOCAB


def loss_of(model: nn.Module, case: dict[str, Any], step: int, ranks: list[int]) -> Tensor:
    """Return the mean loss over the samples of these ranks."""
    pairs = [batch(case, step, rank) for rank in ranks]
    tokens, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return nn.functional.cross_entropy(model(tokens, step != 0), targets)


def train(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Train with DDP. Only rank 0 begins with the seed's weights: DDP broadcasts them."""
    import backend

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend.register()
    dist.init_process_group("mine", store=dist.FileStore("store", size), rank=rank, world_size=size)
    model = make_model(case["seed"] + rank)
    model.frozen.load_state_dict(make_model(case["seed"]).frozen.state_dict())
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, find_unused_parameters=True)
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=RATE), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, case, step, [rank]).backward()
        steps.append({name: copied(p.grad) for name, p in model.named_parameters()})
        optimizer.step()
    return {"gradients": steps, "weights": {name: p.detach() for name, p in model.named_parameters()}}


def copied(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.clone()
