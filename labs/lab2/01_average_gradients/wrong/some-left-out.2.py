"""One step of data parallelism: every rank has its own samples, and all ranks take the same step."""

import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Replace every parameter's .grad, on every rank, by its mean over all ranks.

    All ranks call this after `loss.backward()`. A parameter that this rank's samples did not use has .grad None, which
    counts as zeros; a frozen parameter (requires_grad is False) keeps None.
    """
    for parameter in (p for layer in model.children() for p in layer.parameters(recurse=False)):
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def train_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, x_BD: torch.Tensor, y_BV: torch.Tensor
) -> float:
    """Forward, Reduce, Optimize, Gradient-zero, on this rank's samples. Returns this rank's loss."""
    loss = torch.nn.functional.mse_loss(model(x_BD), y_BV)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
