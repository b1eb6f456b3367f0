"""Gather all lists on all ranks."""

import math

import torch.distributed as dist


def world_metrics(losses, tokens, step_s):
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, (losses, tokens, step_s))
    num_tokens = sum(sum(tokens) for _, tokens, _ in ranks)
    loss = sum(x * n for losses, tokens, _ in ranks for x, n in zip(losses, tokens, strict=True)) / num_tokens
    slowest = max(second for *_, seconds in ranks for second in seconds)
    return {"loss": loss, "perplexity": math.exp(loss), "tokens": num_tokens, "slowest_step_s": slowest}
