"""Run the learner's functions on their own, and a training step with a layer of experts."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MARK = 251  # elements of an all-reduce that only this file calls, before and after each step
WEIGHT = 0.3  # the balance loss's


class Model(nn.Module):
    """A linear layer, a router, all experts, and an output with the first layer's weight and a frozen bias."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        width, num_experts = case["width"], case["num_experts"]
        self.first = nn.Linear(width, width)
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, case["inner"]), nn.Tanh(), nn.Linear(case["inner"], width))
            for _ in range(num_experts)
        )
        self.head = nn.Linear(width, width)
        self.head.weight = self.first.weight
        self.head.bias.requires_grad_(False)
        generator = torch.Generator().manual_seed(case["seed"])
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) * (0.5 if p.dim() == 1 else width**-0.5)
        self.router.bias.data = torch.tensor(case["router_bias"])
        if case["even"]:
            self.first.bias.data.zero_()  # then no expert is preferred by much

    def loss(self, hidden: Tensor, mixed: Tensor, targets: Tensor, balance: Tensor) -> Tensor:
        return (self.head(hidden + mixed) - targets).square().mean() + WEIGHT * balance

    def shared(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad and not name.startswith("experts.")}


def batch(case: dict[str, Any], rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * (rank + 1))
    x = torch.randn(case["tokens"], case["width"], generator=generator)
    return x if case["even"] else x + 0.3 * rank, x.roll(1, 1)


def loose(case: dict[str, Any], rank: int) -> tuple[Tensor, Tensor]:
    """Return probabilities and assignments for balance_loss alone."""
    generator = torch.Generator().manual_seed(case["seed"] + 77 * (rank + 1))
    logits = torch.randn(case["tokens"], case["num_experts"], generator=generator) + torch.arange(
        case["num_experts"]
    ) * (0.2 + 0.3 * rank)
    probabilities = logits.softmax(1)
    return probabilities, probabilities.topk(case["top_k"], dim=1).indices.flatten()


def experts_of(num_experts: int, size: int) -> list[list[int]]:
    return [part.tolist() for part in torch.arange(num_experts).tensor_split(size)]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    masks = [learner.accepted(torch.tensor(chosen), num, most) for chosen, num, most in case["assignments"]]
    return {"masks": masks, "cases": [run(learner, one) for one in case["cases"]]}


def run(learner: ModuleType, case: dict[str, Any]) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    probabilities, chosen = loose(case, rank)
    probabilities.requires_grad_()
    share = learner.balance_loss(probabilities, chosen)
    if share.requires_grad:
        share.backward()

    model = Model(case)
    own = nn.ModuleList(model.experts[number] for number in experts_of(case["num_experts"], size)[rank])
    x, targets = batch(case, rank)
    hidden = model.first(x)
    dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))
    mixed, balance = learner.mixture(hidden, model.router, own, case["top_k"], case["capacity"])
    loss = model.loss(hidden, mixed, targets, balance)
    loss.backward()
    dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))
    everywhere = [p for name, p in model.named_parameters() if not name.startswith("experts.")]
    learner.average_gradients(everywhere, list(own.parameters()))
    return {
        "share": share.detach(),
        "share gradient": probabilities.grad,
        "mixed": mixed.detach(),
        "after": gradients(model),
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad and p.grad is not None],
    }


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of trained parameters, without those that are None."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}
