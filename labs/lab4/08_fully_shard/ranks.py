"""Take two steps with a model that the learner has sharded."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

STEPS, LENGTH = 2, 5
OPTIONS = {"lr": 0.02, "eps": 1e-3}  # with the usual eps, rounding would decide the step of a tiny gradient
MARK = 251  # elements of an all-reduce that only this file calls; one before each step, one after it


class Layer(nn.Module):
    """x plus two linear layers. `scale` takes no part in the loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width + 1), nn.Linear(2 * width + 1, width)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """An embedding, layers and an output with the embedding's weight. The norm of the second layer is frozen."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        width = case["width"]
        self.embedding = nn.Embedding(case["vocabulary"], width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(case["num_layers"]))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, case["vocabulary"], bias=False)
        self.head.weight = self.embedding.weight
        generator = torch.Generator().manual_seed(case["seed"])
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) * 0.4
            p.data[: (len(p) + 1) // 2] *= 1.5  # shards with different norms
        self.layers[1].norm.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def batch(case: dict[str, Any], rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * rank + step)
    tokens = torch.randint(case["vocabulary"], (case["samples"], LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def whole(value: Tensor | None) -> Tensor | None:
    """Return a tensor as it would be in one process; None if it is None."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_bytes(value: Tensor) -> int:
    return value.to_local().nbytes if isinstance(value, DTensor) else value.nbytes


def number_of(value: Any) -> Any:
    """Return a tensor with one element as a float, and any other value as it is."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    model, mesh = Model(case), init_device_mesh("cpu", (dist.get_world_size(),))
    whole_layers: list[bool] = []

    def look(*_: Any) -> None:
        whole_layers[:] = [not all(isinstance(p, DTensor) for p in layer.parameters()) for layer in model.layers]

    model.head.register_forward_pre_hook(look)
    try:
        optimizer = learner.prepare(model, mesh, dict(OPTIONS))
    except Exception as error:
        num = sum(isinstance(layer, FSDPModule) for layer in model.layers)
        units = f"{num} of {len(model.layers)} layers" + (
            " and the model itself" if isinstance(model, FSDPModule) else ""
        )
        error.add_note(f"(fully_shard had been called on {units}.)")
        raise
    found: dict[str, Any] = {"plain": [name for name, p in model.named_parameters() if not isinstance(p, DTensor)]}
    found["bytes"] = sum(map(local_bytes, model.parameters()))
    found["names"] = [name for name, _ in model.named_parameters()]
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    steps = []
    for step in range(0 if found["plain"] else STEPS):
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8), group=alone)
        numbers = learner.train_step(model, optimizer, *batch(case, dist.get_rank(), step), case["max_norm"])
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8), group=alone)
        numbers = {name: number_of(value) for name, value in numbers.items()}
        gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        steps.append({"numbers": numbers, "gradients": gradients, "weights": weights})
    for step in steps:
        for name in ("gradients", "weights"):
            step[name] = {parameter: whole(value) for parameter, value in step[name].items()}
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    found["state bytes"] = sum(local_bytes(state) for state in states if state.dim())
    return found | {"steps": steps, "whole": whole_layers}
