"""Keep a shard of each parameter, and the whole parameter only while a layer computes with it."""

import torch
import torch.distributed as dist
from torch import nn


class Sharded:
    """One parameter, of which each rank keeps a shard: an equal part of its elements, padded with zeros at the end."""

    def __init__(self, parameter: nn.Parameter) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self.numel = -(-parameter.numel() // size)  # elements of a shard, rounded up
        self.parameter = parameter
        self.whole = torch.zeros(size * self.numel)  # all shards, end to end
        self.whole[: parameter.numel()] = parameter.data.flatten()
        own = self.whole[rank * self.numel : (rank + 1) * self.numel].clone()
        self.shard = nn.Parameter(own, requires_grad=parameter.requires_grad)
        parameter.data = self.whole[: parameter.numel()].view(parameter.shape)  # shares the memory of `whole`
        self.free()

    def gather(self) -> None:
        """Fill `whole`, and so the parameter, with all ranks' shards. It may be filled already."""
        raise NotImplementedError("fill in gather")

    def free(self) -> None:
        """Release the memory of `whole`. The tensor stays, and so does every other tensor that shares its memory."""
        raise NotImplementedError("fill in free")

    def reduce(self) -> None:
        """Leave in `shard.grad` this rank's part of the mean gradient, and release the parameter's own gradient."""
        raise NotImplementedError("fill in reduce")


def shard_model(model: nn.Module) -> dict[str, nn.Parameter]:
    """Shard all parameters of the model, also frozen ones, and return this rank's shards by the parameter's name.

    A layer is a module that has parameters itself. A layer's parameters are whole while its forward runs, and while its
    backward runs; at any other time their storage has 0 bytes. A tied weight belongs to several layers.
    After loss.backward(), `shard.grad` of each parameter that received a gradient is this rank's part of the mean over
    the ranks. The caller's optimizer updates the shards and sets their .grad to None.

    Comm:  an all-gather before a layer's forward and one before its backward; a reduce-scatter of each gradient.
    """
    sharded = {parameter: Sharded(parameter) for parameter in model.parameters()}
    raise NotImplementedError("part 2: fill in the hooks, on the layers and the parameters")
    return {name: sharded[parameter].shard for name, parameter in model.named_parameters()}
