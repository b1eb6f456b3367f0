"""Two steps of two micro-batches with the learner's ShardedGradients, and the memory that backward needs."""

import gc
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from frog.learn.grader.live_bytes import LiveBytes

# Elements of all-reduces that only this file calls; they mark the end of a backward, or of a case.
BACKWARD, CASE = 251, 252
STEPS, MICRO_BATCHES = 2, 2


class Network(nn.Module):
    """Residual layers. Two share a weight, one weight is frozen, one parameter is used in some micro-batches only, and
    one has a single element.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        width, self.case = case["width"], case
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=case["bias"]) for _ in range(case["num_layers"]))
        if case["odd"]:
            self.spare = nn.Parameter(torch.zeros(7))  # never used
            self.scale = nn.Parameter(torch.ones(width))
            self.gain = nn.Parameter(torch.ones(1))
            first, second, frozen = case["odd"]
            self.layers[second].weight = self.layers[first].weight
            self.layers[frozen].weight.requires_grad_(False)
        generator = torch.Generator().manual_seed(case["seed"])
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) / width**0.5

    def forward(self, x: Tensor, scales: bool) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        x = x * self.gain if self.case["odd"] else x
        return x * self.scale if scales and self.case["odd"] else x


def batch(case: dict[str, Any], step: int, micro: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * step + 100 * micro + rank + 1)
    return torch.randn(case["samples"], case["width"], generator=generator)


def loss_of(model: Network, x: Tensor, step: int, micro: int) -> Tensor:
    return (model(x, scales=(step, micro) == (0, 0)) - x.roll(1, 1)).square().mean()


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [run(learner, one) for one in case["cases"]]


def run(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    model, live = Network(case), LiveBytes()
    with live:
        sharded = learner.ShardedGradients(model)
    steps, peak = [], 0
    for step in range(STEPS):
        for micro in range(MICRO_BATCHES):
            loss = loss_of(model, batch(case, step, micro, dist.get_rank()), step, micro)
            live.peak = live.now
            with live:
                loss.backward()
            del loss
            peak = max(peak, live.peak)
            if (step, micro) == (STEPS - 1, MICRO_BATCHES - 1):
                gc.collect()
                pieces = live.settled(case["most"])
            in_grad = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
            dist.all_reduce(torch.zeros(BACKWARD, dtype=torch.int8))
        with live:
            found = sharded.take()
        steps.append({name: t.clone() for name, t in found.items()} if isinstance(found, dict) else found)
        del found
        model.zero_grad()
    dist.all_reduce(torch.zeros(CASE, dtype=torch.int8))
    return {"steps": steps, "peak": peak, "pieces": pieces, "in_grad": in_grad}
