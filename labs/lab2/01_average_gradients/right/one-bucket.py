"""One step of data parallelism: every rank has its own samples, and all ranks take the same step."""

import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Replace every parameter's .grad, on every rank, by its mean over all ranks.

    All ranks call this after `loss.backward()`. A parameter that this rank's samples did not use has .grad None, which
    counts as zeros; a frozen parameter (requires_grad is False) keeps None.
    """
    with torch.no_grad():
        trained = [p for p in model.parameters() if p.requires_grad]
        flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in trained])
        work = dist.all_reduce(flat, async_op=True)
        work.wait()
        flat /= dist.get_world_size()
        for p, piece in zip(trained, flat.split([p.numel() for p in trained])):
            p.grad = piece.view_as(p).clone()


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
