"""Run the learner's pair of layers alone, and in a small model that takes two steps."""

import math
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MARK = 251  # elements of an all-reduce that only this file calls; it marks the end of a case
STEPS, RATE = 2, 0.1


def draw(module: nn.Module, generator: torch.Generator) -> None:
    """Set all parameters to random values."""
    for p in module.parameters():
        scale = 1.0 if p.dim() == 1 else p.shape[-1]
        p.data = torch.randn(p.shape, generator=generator) / math.sqrt(scale)


def make_pair(case: dict[str, Any]) -> tuple[nn.Linear, nn.Linear]:
    """Return the two whole layers."""
    D, F = case["width"], case["inner"]
    up, down = nn.Linear(D, F, bias=case["bias"]), nn.Linear(F, D, bias=case["bias"])
    generator = torch.Generator().manual_seed(case["seed"])
    draw(up, generator)
    draw(down, generator)
    return up, down


def make_inputs(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return an input and the gradient of the output; neither is contiguous."""
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    T, B, D = case["length"], case["batch"], case["width"]
    x_BTD, gradient_BTD = (torch.randn(T, B, D, generator=generator).transpose(0, 1) for _ in range(2))
    return x_BTD, gradient_BTD


def run_pair(up: nn.Module, down: nn.Module, case: dict[str, Any]) -> dict[str, Any]:
    """Run forward and backward once, and return what they give."""
    x_BTD, gradient_BTD = make_inputs(case)
    x_BTD.requires_grad_()
    y_BTD = down(torch.tanh(up(x_BTD)))
    if case["residual"]:
        y_BTD = x_BTD + y_BTD
    y_BTD.backward(gradient_BTD)
    layers = {
        f"{layer}.{name}": value
        for layer, module in (("up", up), ("down", down))
        for name, value in (("weight", module.weight), ("bias", module.bias))
    }
    return {
        "y": y_BTD,
        "x.grad": x_BTD.grad,
        "parameters": dict(layers),
        "gradients": {name: None if p is None else p.grad for name, p in layers.items()},
        "bytes": {name: 0 if p is None else p.untyped_storage().nbytes() for name, p in layers.items()},
    }


class Block(nn.Module):
    def __init__(self, norm: nn.Module, up: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm, up, down

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD + self.down(torch.tanh(self.up(self.norm(x_BTD))))


class Model(nn.Module):
    """An embedding and three blocks. The first block runs twice; the second's `up` is frozen; the third never runs."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        D, F = case["width"], case["inner"]
        self.embed = nn.Embedding(case["vocabulary"], D)
        self.blocks = nn.ModuleList(
            Block(nn.LayerNorm(D), nn.Linear(D, F + n), nn.Linear(F + n, D, bias=n != 1)) for n in range(3)
        )
        draw(self, torch.Generator().manual_seed(case["seed"]))

    def divide(self, learner: ModuleType) -> None:
        """Replace the linear layers by the learner's."""
        for block in self.blocks:
            block.up, block.down = learner.ColumnParallelLinear(block.up), learner.RowParallelLinear(block.down)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.embed(tokens_BT)
        for n in (0, 1, 0):
            x_BTD = self.blocks[n](x_BTD)
        return x_BTD


def train(model: Model, case: dict[str, Any]) -> dict[str, Any]:
    """Take two steps of SGD; return the gradients of each, and the weights after the last."""
    model.blocks[1].up.requires_grad_(False)
    generator = torch.Generator().manual_seed(case["seed"] + 2)
    steps = []
    for _ in range(STEPS):
        tokens_BT = torch.randint(case["vocabulary"], (case["batch"], case["length"]), generator=generator)
        target_BTD = torch.randn(case["batch"], case["length"], case["width"], generator=generator)
        model.zero_grad()
        loss = (model(tokens_BT) - target_BTD).square().mean()
        loss.backward()
        steps.append({name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()})
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= RATE * p.grad
    return {"gradients": steps, "weights": dict(model.named_parameters())}


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    found = []
    for case in cases["cases"]:
        if case["kind"] == "pair":
            up, down = make_pair(case)
            found.append(run_pair(learner.ColumnParallelLinear(up), learner.RowParallelLinear(down), case))
        else:
            model = Model(case)
            model.divide(learner)
            found.append(train(model, case))
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))
    return found
