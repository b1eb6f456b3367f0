"""Train the learner's part of an attention layer for two steps of two micro-batches."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MARK = 251  # elements of all-reduces that only this file calls, before and after sum_shared_gradients
STEPS, MICRO_BATCHES, RATE = 2, 2, 0.01
LAYERS = ("q", "k", "v", "o")


class Attention(nn.Module):
    """The whole layer."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = case["heads"], case["kv_heads"]
        D, C = case["width"], case["head_width"]
        self.q = nn.Linear(D, C * self.num_heads, bias=case["bias"])
        self.k = nn.Linear(D, C * self.num_kv_heads, bias=False)  # softmax cancels a bias of the keys
        self.v = nn.Linear(D, C * self.num_kv_heads, bias=case["bias"])
        self.o = nn.Linear(C * self.num_heads, D, bias=False)
        generator = torch.Generator().manual_seed(case["seed"])
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) * (1.0 if p.dim() == 1 else 1.5 / math.sqrt(p.shape[1]))

    def forward(self, x_BTD: Tensor) -> Tensor:
        group = self.num_heads // self.num_kv_heads
        return self.attend(x_BTD, list(range(self.num_heads)), lambda head: head // group)

    def attend(self, x_BTD: Tensor, heads: list[int], kv_of: Callable[[int], int]) -> Tensor:
        """Return what these query heads add to the output, with the key/value head that `kv_of` names for each."""
        q_BHTC = self.q(x_BTD).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k_BKTC, v_BKTC = (
            layer(x_BTD).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2) for layer in (self.k, self.v)
        )
        used = [kv_of(head) for head in heads]
        scores = q_BHTC[:, heads] @ k_BKTC[:, used].transpose(-1, -2) / math.sqrt(q_BHTC.shape[-1])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        y_BhTC = scores.masked_fill(later, -math.inf).softmax(-1) @ v_BKTC[:, used]
        columns_DHC = self.o.weight.unflatten(1, (self.num_heads, -1))
        return torch.einsum("bhtc,dhc->btd", y_BhTC, columns_DHC[:, heads])


def batch(case: dict[str, Any], step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    """Return an input and the gradient of the output."""
    generator = torch.Generator().manual_seed(case["seed"] + 10 * step + micro_batch + 1)
    T, B, D = case["length"], case["batch"], case["width"]
    x_BTD, gradient_BTD = (torch.randn(T, B, D, generator=generator).transpose(0, 1) for _ in range(2))
    return x_BTD.requires_grad_(), gradient_BTD


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of the four layers."""
    return {
        f"{layer}.{name}": p for layer in LAYERS for name, p in getattr(module, layer).named_parameters(recurse=False)
    }


def run_step(module: nn.Module, case: dict[str, Any], step: int) -> dict[str, Any]:
    """Run forward and backward of all micro-batches."""
    found: dict[str, Any] = {"y": [], "x.grad": []}
    for micro_batch in range(MICRO_BATCHES):
        x_BTD, gradient_BTD = batch(case, step, micro_batch)
        y_BTD = module(x_BTD)
        y_BTD.backward(gradient_BTD)
        found["y"].append(y_BTD.detach())
        found["x.grad"].append(x_BTD.grad)
    return found


def move(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor | None]:
    """Take a step of SGD; return the gradients, and set them to None."""
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in parameters.items()}
    for p in parameters.values():
        if p.grad is not None:
            p.data -= RATE * p.grad
        p.grad = None
    return gradients


def mark() -> None:
    dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    found = []
    for case in cases["cases"]:
        split = learner.SplitAttention(Attention(case))
        split.k.requires_grad_(not case["frozen"])
        parameters = parameters_of(split)
        start = {name: p.detach().clone() for name, p in parameters.items()}
        steps = []
        for step in range(STEPS if case["runs"] else 0):
            one = run_step(split, case, step)
            mark()
            split.sum_shared_gradients()
            mark()
            steps.append(one | {"gradients": move(parameters)})
        found.append({"start": start, "steps": steps, "weights": parameters})
    return found
