"""Train a bf16 model with float32 masters, of which each rank holds and updates a part."""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Masters:
    """The trained weights in float32, sharded over the ranks, for a model that computes in bf16.

    Masters(model, make_optimizer)
        The model is in float32, with the same weights on all ranks; its parameters become bf16. `make_optimizer([t])`
        creates an optimizer. Its one tensor is this rank's part of all trained parameters: flattened, end to end in
        the model's order, padded with zeros, cut into equal parts.
    add()
        After the backward of each micro-batch: adds the gradients to a sum in float32, and sets each .grad to None.
        A trained parameter without a gradient counts as zero.
    step()
        Updates this rank's part with the mean, over the ranks, of the sums; begins a new sum; and gives the model on
        every rank the new weights, rounded to bf16. (The caller divides the loss by the number of micro-batches.)

    Comm:  a step reduce-scatters the sums in float32, and all-gathers the weights in bf16.
    """

    def __init__(self, model: nn.Module, make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.numel = math.ceil(sum(p.numel() for p in self.trained) / dist.get_world_size())  # elements in a part
        flat = self.flatten([p.detach() for p in self.trained])
        rank = dist.get_rank()
        self.master = nn.Parameter(flat[rank * self.numel : (rank + 1) * self.numel].clone())
        self.optimizer = make_optimizer([self.master])
        self.sum = torch.zeros(self.numel * dist.get_world_size())
        model.to(torch.bfloat16)

    def flatten(self, tensors: list[Tensor]) -> Tensor:
        """Return tensors, one for each trained parameter, end to end with the padding, in their own dtype."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        return torch.cat([flat, flat.new_zeros(self.numel * dist.get_world_size() - flat.numel())])

    def unflatten(self, flat: Tensor) -> None:
        """Copy the values of a flat tensor to the trained parameters, which keep their dtype."""
        numels = [p.numel() for p in self.trained]
        for p, values in zip(self.trained, flat[: sum(numels)].split(numels), strict=True):
            p.data.copy_(values.view_as(p))

    def add(self) -> None:
        self.sum += self.flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained])
        for p in self.trained:
            if p.grad is not None:
                p.grad.zero_()

    def step(self) -> None:
        mine = torch.empty(self.numel)
        dist.reduce_scatter_tensor(mine, self.sum)
        self.master.grad = mine / dist.get_world_size()
        self.optimizer.step()
        self.sum.zero_()
        whole = torch.empty(self.numel * dist.get_world_size(), dtype=torch.bfloat16)
        dist.all_gather_into_tensor(whole, self.master.data.bfloat16())
        self.unflatten(whole)
