"""Train the learner's model, which has a slice of the sequence on each rank, for two steps of two micro-batches."""

import math
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MARK = 251  # elements of all-reduces that only this file calls, around sum_gradients
STEPS, MICRO_BATCHES, RATE = 2, 2, 0.01


class Whole(nn.Module):
    """The whole model, in one process. `detached` names columns of the inner width that get no gradient."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        D, F = case["width"], case["inner"]
        self.embed = nn.Embedding(case["vocabulary"], D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(case["blocks"]))
        self.ups = nn.ModuleList(nn.Linear(D, F) for _ in range(case["blocks"]))
        self.downs = nn.ModuleList(nn.Linear(F, D) for _ in range(case["blocks"]))
        self.norm = nn.LayerNorm(D)
        generator = torch.Generator().manual_seed(case["seed"])
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) / math.sqrt(1 if p.dim() == 1 else p.shape[-1])
        for norm in (*self.norms, self.norm):
            norm.weight.data += 1.0
        if case["frozen"]:
            self.norms[0].requires_grad_(False)

    def forward(self, tokens_BT: Tensor, kept: slice = slice(None)) -> Tensor:
        """Return the output; only the columns `kept` of the inner width take part in backward."""
        x_BTD = self.embed(tokens_BT)
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            h_BTF = torch.tanh(up(norm(x_BTD)))
            g_BTF = h_BTF.detach().clone()
            g_BTF[..., kept] = h_BTF[..., kept]
            x_BTD = x_BTD + down(g_BTF)
        return self.norm(x_BTD)

    def named(self) -> dict[str, nn.Parameter]:
        """Return the parameters by the names of the learner's model."""
        found = {"embed.weight": self.embed.weight}
        for n, (norm, up, down) in enumerate(zip(self.norms, self.ups, self.downs, strict=True)):
            found |= {f"blocks.{n}.norm.{name}": p for name, p in norm.named_parameters()}
            found |= {f"blocks.{n}.up.{name}": p for name, p in up.named_parameters()}
            found |= {f"blocks.{n}.down.weight": down.weight, f"blocks.{n}.bias": down.bias}
        return found | {f"norm.{name}": p for name, p in self.norm.named_parameters()}


def part_of(width: int, rank: int, size: int) -> slice:
    return slice(rank * width // size, (rank + 1) * width // size)


def batch(case: dict[str, Any], step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    """Return the tokens, and the gradient of the whole output."""
    generator = torch.Generator().manual_seed(case["seed"] + 10 * step + micro_batch + 1)
    tokens_BT = torch.randint(case["vocabulary"], (case["batch"], case["length"]), generator=generator)
    return tokens_BT, torch.randn(case["batch"], case["length"], case["width"], generator=generator)


def make_model(learner: ModuleType, case: dict[str, Any]) -> nn.Module:
    """Return the learner's model with this rank's part of the whole model's weights."""
    whole = Whole(case)
    part = part_of(case["inner"], dist.get_rank(), dist.get_world_size())
    blocks = []
    for norm, up, down in zip(whole.norms, whole.ups, whole.downs, strict=True):
        own_up = nn.Linear(case["width"], part.stop - part.start)
        own_up.weight.data, own_up.bias.data = up.weight.data[part].clone(), up.bias.data[part].clone()
        own_down = nn.Linear(part.stop - part.start, case["width"], bias=False)
        own_down.weight.data = down.weight.data[:, part].clone()
        blocks.append(learner.Block(norm, own_up, own_down, down.bias))
    return learner.Model(whole.embed, blocks, whole.norm)


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


def run(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    model, seen = make_model(learner, case), []
    for block in model.blocks:
        block.norm.register_forward_pre_hook(lambda norm, inputs: seen.append(inputs[0].shape[1]))
    own = part_of(case["length"], dist.get_rank(), dist.get_world_size())
    found: dict[str, Any] = {"steps": [], "seen": seen}
    for step in range(case["steps"]):
        outputs = []
        for micro_batch in range(MICRO_BATCHES):
            tokens_BT, gradient_BTD = batch(case, step, micro_batch)
            y_BtD = model(tokens_BT)
            outputs.append(y_BtD.detach())
            if y_BtD.shape == gradient_BTD[:, own].shape:
                y_BtD.backward(gradient_BTD[:, own])
        mark()
        learner.sum_gradients(model)
        mark()
        found["steps"].append({"outputs": outputs, "gradients": move(dict(model.named_parameters()))})
    return found | {"weights": dict(model.named_parameters())}


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    return [run(learner, case) for case in cases["cases"]]
