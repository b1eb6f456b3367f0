"""Runs in which the batches differ, the weights do, both, or neither."""

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
        model[1].bias.data += case["drift"] * torch.randn(VOCAB, generator=generator)
    return model


def make_batch(case: dict[str, Any], rank: int) -> torch.Tensor:
    """Tokens that follow each other as in a text: small numbers often."""
    generator = torch.Generator().manual_seed(case["seed"] * 7 + (rank if case["split"] else 0))
    return (torch.rand(8, 16, generator=generator) ** 3 * VOCAB).long()


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    rank, found = dist.get_rank(), []
    for case in cases["cases"]:
        model, batch = make_model(case, rank), make_batch(case, rank)
        answer = learner.why_losses_differ(model, batch, loss_of)
        found.append({"answer": answer, "weights": list(model.parameters()), "batch": batch})
    return found
