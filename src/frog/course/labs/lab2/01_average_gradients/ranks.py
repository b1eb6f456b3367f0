"""A model as real ones are: a tied weight, a frozen one, one that only some ranks use."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, OUT = 6, 6


class Model(nn.Module):
    """Two layers that share one weight; a branch that not every sample takes; a buffer that is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.branch = nn.Linear(WIDTH, WIDTH, bias=False)
        self.frozen = nn.Linear(WIDTH, OUT)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float16))

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        h_BD = torch.tanh(self.first(x_BD))
        if x_BD[0, 0] > 0:  # one sample decides for its rank's batch
            h_BD = h_BD + self.branch(h_BD)
        return self.frozen(self.second(h_BD))


def make(seed: int, size: int, samples: int = 4) -> tuple[Model, torch.Tensor, torch.Tensor]:
    """The model, and for each rank its samples and targets: (N, B, D)."""
    torch.manual_seed(seed)
    model = Model()
    x_NBD, y_NBV = torch.randn(size, samples, WIDTH), torch.randn(size, samples, OUT)
    return model, samples_of_step(x_NBD, seed, 0), y_NBV


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def samples_of_step(x_NBD: torch.Tensor, seed: int, step: int) -> torch.Tensor:
    """The samples in another order; again one rank alone takes the branch."""
    x_NBD = x_NBD.roll(step, 1)
    x_NBD[:, 0, 0] = -1.0
    x_NBD[seed % len(x_NBD), 0, 0] = 1.0
    return x_NBD


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """What the function makes of one gradient; and the weights after three whole steps."""
    rank, size, seed = dist.get_rank(), dist.get_world_size(), case["seed"]
    model, x_NBD, y_NBV = make(seed, size)
    nn.functional.mse_loss(model(x_NBD[rank]), y_NBV[rank]).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += rank  # so that it shows if weights are averaged
    once = {"before": gradients(model), "weights before": weights(model)}
    learner.average_gradients(model)
    once |= {"after": gradients(model), "weights": weights(model)}

    model, x_NBD, y_NBV = make(seed, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        learner.train_step(model, optimizer, samples_of_step(x_NBD, seed, step)[rank], y_NBV[rank])
    return {**once, "trained": weights(model)}
