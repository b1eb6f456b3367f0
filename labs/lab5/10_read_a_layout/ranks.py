"""Ask the learner for the numbers, and measure them on a real step of each mesh of four ranks."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

AXES = ("pipeline", "data", "shard", "tensor")  # the last one varies fastest with the rank
MARK = 251  # elements of an all-reduce that only this file calls, before each mesh


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    found = [
        {
            "held": dict(learner.held_bytes(learner.Model(*model), learner.Mesh(**mesh))),
            "sent": dict(learner.sent_bytes(learner.Model(*model), learner.Mesh(**mesh))),
        }
        for model, mesh in case["layouts"]
    ]
    model, meshes, memories = case["choice"]
    named = {name: learner.Mesh(**mesh) for name, mesh in meshes.items()}
    return {"layouts": found, "chosen": [learner.choose(learner.Model(*model), named, most) for most in memories]}


# ---- measured on real ranks, without the learner's code --------------------------------------------------------------


def coordinates(mesh: dict[str, int], rank: int) -> dict[str, int]:
    found = {}
    for axis in reversed(AXES):
        rank, found[axis] = divmod(rank, mesh.get(axis, 1))
    return found


def group_of(mesh: dict[str, int], axis: str, rank: int) -> list[int]:
    """Return the ranks that differ from this one in their index on the axis alone."""
    mine = coordinates(mesh, rank)
    return [
        other
        for other in range(dist.get_world_size())
        if all(mine[one] == theirs for one, theirs in coordinates(mesh, other).items() if one != axis)
    ]


def measure(_learner: ModuleType, case: dict[str, Any]) -> Any:
    size = dist.get_world_size()
    sets = {tuple(group_of(mesh, axis, rank)) for _, mesh in case["layouts"] for axis in AXES for rank in range(size)}
    groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(sets)}
    found = []
    for model, mesh in case["layouts"]:
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8), group=groups[(dist.get_rank(),)])
        found.append(Step(model, mesh, groups).run())
    return found


class Step:
    """One training step of a rank, by hand, so that each tensor that it holds is in sight."""

    def __init__(self, model: list[int], mesh: dict[str, int], groups: dict[tuple[int, ...], Any]) -> None:
        num_layers, self.width, inner, tokens = model
        self.mesh, self.at = mesh, coordinates(mesh, dist.get_rank())
        self.groups = {axis: groups[tuple(group_of(mesh, axis, dist.get_rank()))] for axis in AXES}
        layers = len(torch.arange(num_layers).tensor_split(mesh.get("pipeline", 1))[self.at["pipeline"]])
        self.inner = len(torch.arange(inner).tensor_split(mesh.get("tensor", 1))[self.at["tensor"]])
        self.tokens = tokens // (mesh.get("data", 1) * mesh.get("shard", 1))
        num = 2 * self.width * self.inner
        self.shards = [torch.randn(-(-num // mesh.get("shard", 1))) for _ in range(layers)]
        self.gradients = [torch.zeros_like(shard) for shard in self.shards]
        self.moments = [torch.zeros_like(shard) for shard in self.shards for _ in range(2)]
        self.gathered = 0

    def has(self, axis: str) -> bool:
        return self.mesh.get(axis, 1) > 1

    def weights(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return `up` and `down`, gathered if they are sharded."""
        flat = self.shards[layer]
        if self.has("shard"):
            parts = [torch.empty_like(flat) for _ in range(self.mesh["shard"])]
            dist.all_gather(parts, flat, group=self.groups["shard"])
            flat = torch.cat(parts)
            self.gathered = max(self.gathered, flat.nbytes)
        num = self.width * self.inner
        return flat[:num].view(self.inner, self.width), flat[num : 2 * num].view(self.width, self.inner)

    def add(self, x: Tensor) -> Tensor:
        if self.has("tensor"):
            dist.all_reduce(x, group=self.groups["tensor"])
        return x

    def run(self) -> dict[str, int]:
        stages, stage = self.mesh.get("pipeline", 1), self.at["pipeline"]
        line = dist.get_process_group_ranks(self.groups["pipeline"])
        x, kept = torch.randn(self.tokens, self.width), []
        if stage > 0:
            dist.recv(x, line[stage - 1])
        for layer in range(len(self.shards)):
            up, down = self.weights(layer)
            inner = torch.relu(x @ up.T)
            kept.append((x, inner))
            x = self.add(inner @ down.T)
        if stage < stages - 1:
            dist.send(x, line[stage + 1])
        g = torch.randn(self.tokens, self.width)
        if stage < stages - 1:
            dist.recv(g, line[stage + 1])
        for layer in reversed(range(len(self.shards))):
            up, down = self.weights(layer)
            x, inner = kept[layer]
            g_inner = (g @ down) * (inner > 0)
            self.reduce(layer, torch.cat([(g_inner.T @ x).flatten(), (g.T @ inner).flatten()]))
            g = self.add(g_inner @ up)
        if stage > 0:
            dist.send(g, line[stage - 1])
        states = [*self.shards, *self.gradients, *self.moments]
        return {
            "states": sum(tensor.nbytes for tensor in states),
            "gathered": self.gathered,
            "activations": sum(tensor.nbytes for pair in kept for tensor in pair),
        }

    def reduce(self, layer: int, gradient: Tensor) -> None:
        if self.has("shard"):
            padded = torch.nn.functional.pad(
                gradient, (0, len(self.shards[layer]) * self.mesh["shard"] - len(gradient))
            )
            parts = list(padded.chunk(self.mesh["shard"]))
            dist.reduce_scatter(self.gradients[layer], parts, group=self.groups["shard"])
        else:
            self.gradients[layer].copy_(gradient)
        if self.has("data"):
            dist.all_reduce(self.gradients[layer], group=self.groups["data"])
