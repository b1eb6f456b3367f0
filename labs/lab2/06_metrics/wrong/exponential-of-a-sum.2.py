"""Metrics of a run, from the measurements of each rank."""

import math

import torch
import torch.distributed as dist


def world_metrics(losses: list[float], tokens: list[int], step_s: list[float]) -> dict[str, float]:
    """Return the run's metrics, the same on every rank. The arguments describe this rank's batches; lists may be empty.

    losses:  mean loss per token, for each batch of this rank.
    tokens:  number of tokens in each of these batches. The last batch has fewer.
    step_s:  seconds that each batch took.

    Returns  "loss": mean over all tokens of all ranks; "perplexity"; "tokens": the total over all ranks;
             "slowest_step_s": the longest step of any rank.
    """
    loss_sum = sum(loss * num for loss, num in zip(losses, tokens, strict=True))
    sums = torch.tensor([loss_sum, sum(tokens)], dtype=torch.float64)
    slowest = torch.tensor(max(step_s, default=0.0), dtype=torch.float64)
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    loss = (sums[0] / sums[1]).item()
    return {
        "loss": loss,
        "perplexity": sums[0].exp().item(),
        "tokens": sums[1].item(),
        "slowest_step_s": slowest.item(),
    }
