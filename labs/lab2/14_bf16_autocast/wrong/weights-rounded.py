"""One training step of data parallelism that computes in bf16."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> float:
    """Take one optimizer step on this rank's part of the batch; return the mean loss over all ranks.

    inputs, targets:  float32, (samples, features); every rank has the same number of samples.
    loss_of:          `loss_of(outputs, targets)` returns the mean loss over these samples.

    The model's matrix products run in bfloat16, under autocast. The weights, the loss, the gradients and their mean
    over the ranks are float32. Every parameter of the model is trained. With any optimizer, the result is the same as
    that of a single process with all samples.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(inputs)
    loss = loss_of(outputs.float(), targets)
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16())
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()
