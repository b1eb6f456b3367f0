"""How the world size changes a training."""

import math


def plan(
    num_samples: int, world_size: int, batch_per_rank: int, grad_accum: int, base_rate: float, base_batch: int
) -> dict[str, float]:
    """Describe one epoch.

    num_samples:     size of the data set; a sampler distributes the samples and pads.
    batch_per_rank:  samples per rank in one micro-batch.
    grad_accum:      micro-batches per rank in one step.
    base_rate:       the learning rate that was good at an effective batch of `base_batch`.

    Returns  "effective_batch": samples in one full step; "samples_per_rank": in an epoch, padding included;
             "steps": optimizer steps in an epoch, the last of which may have fewer samples;
             "learning_rate": by the linear rule.
    """
    effective_batch = world_size * batch_per_rank * grad_accum
    samples_per_rank = math.ceil(num_samples / world_size)
    return {
        "effective_batch": effective_batch,
        "samples_per_rank": samples_per_rank,
        "steps": math.ceil(num_samples / effective_batch),
        "learning_rate": base_rate * effective_batch / base_batch,
    }


def keep_batch(effective_batch: int, world_size: int, most_per_rank: int) -> tuple[int, int]:
    """Return (batch_per_rank, grad_accum) that give `world_size` ranks exactly this effective batch.

    batch_per_rank is at most `most_per_rank`, which fits into memory, and grad_accum is as small as that allows.

    Raises:  ValueError if no such pair exists.
    """
    share, rest = divmod(effective_batch, world_size)
    if rest or not share:
        raise ValueError(f"{world_size} ranks cannot share {effective_batch} samples")
    batch = min(share, most_per_rank)
    return batch, share // batch
