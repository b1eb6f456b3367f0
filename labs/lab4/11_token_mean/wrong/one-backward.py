"""The gradient of the mean loss over tokens, from micro-batches on several ranks."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

IGNORED = -100  # the label of a token that is not trained: of a prompt, or padding


def average_gradients(model: torch.nn.Module) -> None:
    """Replace every .grad, on every rank, by its mean over the ranks, as DistributedDataParallel does."""
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:  # this rank's micro-batches did not use it
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def accumulate(model: torch.nn.Module, micro_batches: list[tuple[Tensor, Tensor]]) -> float:
    """Leave in .grad, on every rank, the gradient of the step's loss; return that loss, the same on all ranks.

    The step's loss is the mean over the trained tokens of all micro-batches of all ranks. A token is trained if its
    label is not IGNORED. Each trained token counts the same.

    model:          `model(tokens)` returns the logits, (batch, time, vocabulary). Its gradients are None.
    micro_batches:  this rank's (tokens, labels), each of shape (batch, time), with labels shifted already. Their sizes
                    differ, and so does their number on each rank, which is 1 or more. A micro-batch, or all of a
                    rank, may have no trained token; some token of the step is trained.
    Memory:         the activations of one micro-batch at a time.
    Comm:           each gradient is reduced once.
    """
    sums = torch.zeros(()); n = torch.zeros(())
    for tokens, labels in micro_batches:
        sums = sums + cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        n += (labels != IGNORED).sum()
    dist.all_reduce(n)
    loss = sums / n
    (loss * dist.get_world_size()).backward()
    average_gradients(model)
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item()
