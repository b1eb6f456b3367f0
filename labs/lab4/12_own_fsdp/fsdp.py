"""Fully sharded data parallelism, as a strategy of one's own for Frog: docs/train/own-strategy.md has the interface."""

import torch
import torch.distributed as dist
from torch import nn


def build(model: nn.Module, group: dist.ProcessGroup) -> "FSDP":
    """Shard the model's trained parameters; all ranks have rank 0's weights.

    `model.layers` is an nn.ModuleList, whose layers run one after the other; each returns one tensor. Some parameters
    are outside the layers. A weight may be used in two places, a parameter may be frozen, and one may have no gradient
    in a step, on all ranks.
    """
    return FSDP(model, group)


class FSDP:
    """Each rank keeps an equal part of the trained weights and of their gradients; hooks do the rest.

    Forward:   a layer's weights are gathered before it runs, and freed after it, also in an evaluation (no_grad).
    Backward:  they are gathered again before the layer's backward pass. After it the gradients are reduced, each rank
               keeps the sum of its part, and weights and gradients of the whole layer are freed.
    Memory:    at any time, one layer and the parameters outside the layers are whole. After `reduce` and before the
               next forward pass, none are: freed means that no tensor holds their bytes any longer.
    Comm:      for each micro-batch two gathers of each layer and one reduce-scatter.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        raise NotImplementedError("fill in FSDP")

    def owned(self) -> list[tuple[str, int, nn.Parameter]]:
        """Return what this rank updates: (name, start, tensor), elements from `start` on of the flattened parameter."""
        raise NotImplementedError("fill in FSDP.owned")

    def after_backward(self, last: bool) -> None:
        """Run after each micro-batch's backward pass; `last` is true for the step's last one."""

    def reduce(self) -> None:
        """Leave in .grad of each owned tensor the mean over the ranks, summed over the step's micro-batches.

        Zeros where no micro-batch had a gradient.
        """
        raise NotImplementedError("fill in FSDP.reduce")

    def gather(self) -> None:
        """Run after the optimizer's step: prepare the next forward pass."""
        raise NotImplementedError("fill in FSDP.gather")
