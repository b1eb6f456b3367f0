"""Run the experiment in worlds whose batches differ, whose weights do, both, or neither."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

VOCAB, WIDTH = 50, 8


def make_model(case: dict[str, Any], rank: int) -> nn.Module:
    generator = torch.Generator().manual_seed(case["seed"])
    model = nn.Sequential(nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB))
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) / 2
    if rank == case["drifted"]:
        drift(model, case["drift"], generator)
    return model.train(case["seed"] % 2 == 0)


def drift(model: nn.Module, how: str, generator: torch.Generator) -> None:
    """Change many numbers by little or by much, or swap two biases."""
    bias = model[1].bias.data
    if how == "embedding":
        model[0].weight.data += 1e-4 * torch.randn(VOCAB, WIDTH, generator=generator)
    elif how == "swap":
        order = bias.argsort()
        places = torch.stack([order[VOCAB // 3], order[VOCAB // 2]])
        bias[places] = bias[places.flip(0)]
    else:
        bias += {"little": 3e-4, "much": 0.3}[how] * torch.randn(VOCAB, generator=generator)


def make_batch(case: dict[str, Any], rank: int) -> torch.Tensor:
    """Draw tokens as in a text: small numbers are frequent."""
    generator = torch.Generator().manual_seed(case["seed"] * 7 + (rank if case["batches"] == "split" else 0))
    batch = (torch.rand(8, 16, generator=generator) ** 3 * VOCAB).long()
    if rank != case["odd"]:
        return batch
    if case["batches"] == "token":
        batch[3, 5] = (batch[3, 5] + 1) % VOCAB
    elif case["batches"] == "shuffled":
        batch = batch.flatten()[torch.randperm(batch.numel(), generator=generator)].view_as(batch)
    elif case["batches"] == "other":
        batch = (torch.rand(8, 16, generator=generator) ** 3 * VOCAB).long()
    return batch


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    rank, found = dist.get_rank(), []
    for case in cases["cases"]:
        model, batch = make_model(case, rank), make_batch(case, rank)
        answer = learner.why_losses_differ(model, batch, loss_of)
        traces = {"training": model.training, "gradients": sum(p.grad is not None for p in model.parameters())}
        found.append({"answer": answer, "weights": list(model.parameters()), "batch": batch, **traces})
    return found
