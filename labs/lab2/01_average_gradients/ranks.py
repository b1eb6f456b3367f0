"""Call the learner's functions with a realistic model: a tied weight, a frozen one, one that some ranks use."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, OUT, SAMPLES = 6, 6, 5
MARK = 251  # elements of an all-reduce that only this file calls; it marks the end of the first call
OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1),
}


class Model(nn.Module):
    """Two layers that share a weight, a nested branch that only some samples use, and a weight outside any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.branch = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False))
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.frozen = nn.Linear(WIDTH, OUT)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float16))

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        h_BD = torch.tanh(self.first(x_BD))
        if x_BD[0, 0] > 0:  # one sample decides for its rank's batch
            h_BD = h_BD + self.branch(h_BD)
        return self.frozen(self.second(h_BD + self.shift))


def make(seed: int, size: int) -> tuple[Model, torch.Tensor, torch.Tensor]:
    """Return the model, and the samples and targets of each rank: (N, B, D)."""
    torch.manual_seed(seed)
    model = Model()
    x_NBD, y_NBV = torch.randn(size, SAMPLES, WIDTH), torch.randn(size, SAMPLES, OUT)
    return model, samples_of_step(x_NBD, seed, 0), y_NBV


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def samples_of_step(x_NBD: torch.Tensor, seed: int, step: int) -> torch.Tensor:
    """Return the samples in another order; again only one rank uses the branch."""
    x_NBD = x_NBD.roll(step, 1)
    x_NBD[:, 0, 0] = -1.0
    x_NBD[seed % len(x_NBD), 0, 0] = 1.0
    return x_NBD


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Call the function on one gradient; then take three complete steps with each optimizer."""
    rank, size, seed = dist.get_rank(), dist.get_world_size(), case["seed"]
    model, x_NBD, y_NBV = make(seed, size)
    nn.functional.mse_loss(model(x_NBD[rank]), y_NBV[rank]).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += rank  # so that averaging the weights shows
    alone = [dist.new_group([one]) for one in range(size)][rank]  # the other ranks do not have to reach the mark
    once = {"before": gradients(model), "weights before": weights(model)}
    learner.average_gradients(model)
    once |= {"after": gradients(model), "weights": weights(model)}

    dist.all_reduce(torch.zeros(MARK, dtype=torch.int8), group=alone)
    return {**once, "trained": {name: train(learner, name, seed) for name in OPTIMIZERS}}


def train(learner: ModuleType, optimizer: str, seed: int) -> dict[str, Any]:
    """Take three complete steps; return the final weights, and what each step returned."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model, x_NBD, y_NBV = make(seed, size)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    returned = []
    for step in range(3):
        x_BD, y_BV = samples_of_step(x_NBD, seed, step)[rank], y_NBV[rank]
        returned.append(learner.train_step(model, stepper, x_BD, y_BV))
    return {"weights": weights(model), "returned": returned}
