"""Train with parameters, gradients and optimizer states that torch's fully_shard distributes over the ranks."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def prepare(model: nn.Module, mesh: DeviceMesh, options: dict[str, float]) -> torch.optim.Optimizer:
    """Shard all parameters of the model over the mesh, and return an AdamW with these options for them.

    model:  `model.layers` is a list of its layers. Its other parameters are those of an embedding, whose weight is also
            the output's, and of a norm.

    No all-gather brings the parameters of two layers to a rank. Outside its forward and backward, a layer is sharded.
    """
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.AdamW(model.parameters(), **options)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, max_norm: float
) -> dict[str, float]:
    """Take a step with this rank's samples, with the gradient's norm limited, and return the numbers for the log.

    Equals:  the step of one process with all ranks' samples. The returned numbers are the same on all ranks.
    """
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack([g.norm().full_tensor() for g in gradients]).norm()
    for g in gradients:
        g *= torch.clamp(max_norm / norm, max=1.0)
    optimizer.step()
    return {"gradient norm": norm.item(), **describe(model, loss.detach())}


def describe(model: nn.Module, loss: Tensor) -> dict[str, float]:
    """Return the mean of the ranks' losses, and the norm of all parameters as one vector."""
    mean = loss.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    flat = torch.cat([p.to_local().flatten() for p in model.parameters()])
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, flat.numel())
    padded = torch.zeros(max(sizes))
    padded[: flat.numel()] = flat.detach()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    norm = torch.cat(parts).norm()
    return {"loss": mean.item(), "weight norm": norm.item()}
