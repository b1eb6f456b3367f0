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
    with torch.autocast(device_type=inputs.device.type, dtype=torch.bfloat16):
        outputs = model(inputs)
        with torch.autocast(device_type=inputs.device.type, enabled=False):
            loss = loss_of(outputs.to(torch.float32), targets)
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()] + [loss.detach().reshape(1)])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    grads = flat[:-1].split([p.numel() for p in model.parameters()])
    for p, grad in zip(model.parameters(), grads, strict=True):
        p.grad.copy_(grad.view_as(p))
    optimizer.step()
    optimizer.zero_grad()
    return flat[-1].item()
