"""Take a few steps of several micro-batches with the learner's masters."""

import math
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MARK = 251  # elements of an all-reduce that only this file calls, after each case


class Model(nn.Module):
    """A model with a tied weight, a frozen layer, and a trained layer that never runs."""

    def __init__(self, vocabulary: int, width: int, inner: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.idle = nn.Linear(width, 3)
        self.up = nn.Linear(width, inner)
        self.frozen = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        return self.head(self.norm(h + self.frozen(torch.tanh(self.up(h)))))


def make_model(case: dict[str, Any]) -> Model:
    """Create a float32 model. Norm weights are 1, as nn.LayerNorm makes them."""
    model, generator = Model(*case["sizes"]), torch.Generator().manual_seed(case["seed"])
    for p in model.parameters():
        if p is not model.norm.weight:
            p.data = torch.randn(p.shape, generator=generator) / math.sqrt(p.shape[-1])
    return model


def make_optimizer(case: dict[str, Any], parameters: Any) -> torch.optim.Optimizer:
    """SGD, whose update is proportional to the gradient, or AdamW with small steps."""
    if case["optimizer"] == "SGD":
        return torch.optim.SGD(parameters, lr=0.5)
    return torch.optim.AdamW(parameters, lr=4e-4, weight_decay=0.1)


def batch(case: dict[str, Any], step: int, micro: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * step + 100 * micro + rank + 1)
    return torch.randint(case["sizes"][0], (5,), generator=generator)


def loss_of(model: nn.Module, case: dict[str, Any], step: int, micro: int, rank: int) -> Tensor:
    """Return the loss of a micro-batch in float32, divided by the number of micro-batches."""
    tokens = batch(case, step, micro, rank)
    targets = (tokens * 7 + 1) % case["sizes"][0]
    return nn.functional.cross_entropy(model(tokens).float(), targets) / case["num_micro"]


def weights(model: nn.Module) -> dict[str, Any]:
    return {name: p.detach().float() for name, p in model.named_parameters()}


def describe(optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    """Return the tensors of the last optimizer, end to end, with their dtype, and the bytes of its whole state."""
    if not optimizers:
        return {"masters": None, "dtypes": [], "num_bytes": 0}
    tensors = [p for group in optimizers[-1].param_groups for p in group["params"]]
    state = [value for values in optimizers[-1].state.values() for value in values.values() if torch.is_tensor(value)]
    return {
        "masters": torch.cat([p.detach().flatten().float() for p in tensors]),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in tensors}),
        "num_bytes": sum(t.numel() * t.element_size() for t in [*tensors, *state] if t.dim()),
    }


def train(learner: ModuleType, case: dict[str, Any]) -> Any:
    rank, model, optimizers = dist.get_rank(), make_model(case), []

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizers.append(make_optimizer(case, parameters))
        return optimizers[-1]

    masters = learner.Masters(model, make)
    built = describe(optimizers) | {
        "weights": weights(model),
        "types": {name: str(p.dtype).removeprefix("torch.") for name, p in model.named_parameters()},
    }
    steps = []
    for step in range(case["num_steps"]):
        for micro in range(case["num_micro"]):
            loss_of(model, case, step, micro, rank).backward()
            masters.add()
        left = [p.grad for p in model.parameters() if p.grad is not None]
        masters.step()
        bytes_left = sum(gradient.numel() * gradient.element_size() for gradient in left)
        steps.append(describe(optimizers) | {"weights": weights(model), "bytes_left": bytes_left})
    dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))
    return {"built": built, "steps": steps}


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    return [train(learner, case) for case in cases["cases"]]
