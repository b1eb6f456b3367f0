"""Metrics of a run from what each rank measured."""

import math

import torch
import torch.distributed as dist


def world_metrics(losses: list[float], tokens: list[int], step_s: list[float]) -> dict[str, float]:
    """The run's metrics, the same on every rank, from this rank's batches. Lists may be empty on some ranks."""
    loss_sum = sum(loss * num for loss, num in zip(losses, tokens, strict=True))
    sums = torch.tensor([loss_sum, sum(tokens)], dtype=torch.float64)
    slowest = torch.tensor(max(step_s, default=0.0), dtype=torch.float64)
    dist.all_reduce(sums, op=dist.ReduceOp.SUM, async_op=True)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    loss = (sums[0] / sums[1]).item()
    return {
        "loss": loss,
        "perplexity": math.exp(loss),
        "tokens": sums[1].item(),
        "slowest_step_s": slowest.item(),
    }
