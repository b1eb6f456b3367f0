"""Build meshes, read samples, and run one backward pass through a block on each mesh."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Table = dict[str, Tensor]


def batch(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(case["seed"])
    x = torch.randn(case["samples"], case["tokens"], case["width"], generator=generator)
    return x * torch.linspace(0.5, 1.5, case["samples"])[:, None, None], x.roll(1, 2)


def weights(case: dict[str, Any]) -> Table:
    """Return the weights of the whole block."""
    width, inner = case["width"], case["inner"]
    shapes = {
        "norm.weight": [width],
        "norm.bias": [width],
        "up.weight": [inner, width],
        "up.bias": [inner],
        "down.weight": [width, inner],
        "bias": [width],
        "hint": [width],
        "scale": [width],
    }
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    return {name: torch.randn(shape, generator=generator) * 0.5 for name, shape in shapes.items()}


def cut(name: str, whole: Tensor, index: int, size: int) -> Tensor:
    """Return what a tensor rank has of a weight or of its gradient."""
    dim = {"up.weight": 0, "up.bias": 0, "down.weight": 1}.get(name)
    return whole if dim is None else whole.tensor_split(size, dim)[index]


def ranks_of(group: Any) -> list[int]:
    """Return the ranks of a group; none if this rank is not in it, or if it is not a group."""
    return dist.get_process_group_ranks(group) if isinstance(group, dist.ProcessGroup) else []


def work(learner: ModuleType, cases: list[dict[str, Any]]) -> Any:
    return [run(learner, case) for case in cases]


def run(learner: ModuleType, case: dict[str, Any]) -> Any:
    mesh = learner.make_mesh(case["data"], case["tensor"])
    found: dict[str, Any] = {"data": ranks_of(mesh.data), "tensor": ranks_of(mesh.tensor)}
    if not usable(found, case):
        return found
    samples = [int(number) for number in learner.my_samples(case["samples"], mesh)]
    found["samples"] = samples
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, samples)
    if not fair(everyone, case):
        return found
    block = learner.Block(case["width"], case["inner"], mesh)
    tensor = dist.get_rank() % case["tensor"]
    for name, p in block.named_parameters():
        p.data = cut(name, weights(case)[name], tensor, case["tensor"]).clone()
    x, y = batch(case)
    has_hint = case["hinted"] is None or case["hinted"] in samples
    (block(x[samples], has_hint) - y[samples]).square().mean().backward()
    found["before"] = gradients(block)
    learner.reduce_gradients(block)
    return found | {"after": gradients(block)}


def usable(found: dict[str, Any], case: dict[str, Any]) -> bool:
    """True if the groups are those of this rank."""
    rank, size = dist.get_rank(), case["tensor"]
    data = list(range(rank % size, case["data"] * size, size))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found["data"] == data and found["tensor"] == tensor_group(rank, size))
    return all(everyone)


def tensor_group(rank: int, size: int) -> list[int]:
    return list(range(rank // size * size, (rank // size + 1) * size))


def fair(everyone: list[list[int]], case: dict[str, Any]) -> bool:
    """True if the tensor ranks of a data index read the same samples, and the data indices divide the batch equally."""
    size = case["tensor"]
    same = all(samples == everyone[rank // size * size] for rank, samples in enumerate(everyone))
    shares = everyone[::size]
    is_equal = len({len(share) for share in shares}) == 1
    return same and is_equal and sorted(sample for share in shares for sample in share) == list(range(case["samples"]))


def gradients(block: nn.Module) -> Table:
    """Return the gradients of trained parameters, without those that are None."""
    return {name: p.grad.clone() for name, p in block.named_parameters() if p.requires_grad and p.grad is not None}
