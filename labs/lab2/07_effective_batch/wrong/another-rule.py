"""What the size of the world does to a training."""

import math


def plan(
    num_samples: int, world_size: int, batch_per_rank: int, grad_accum: int, base_rate: float, base_batch: int
) -> dict[str, float]:
    """What one epoch is."""
    effective_batch = world_size * batch_per_rank * grad_accum
    samples_per_rank = math.ceil(num_samples / world_size)
    return {
        "effective_batch": effective_batch,
        "samples_per_rank": samples_per_rank,
        "steps": math.ceil(num_samples / effective_batch),
        "learning_rate": base_rate * math.sqrt(effective_batch / base_batch),
    }


def keep_batch(effective_batch: int, world_size: int, most_per_rank: int) -> tuple[int, int]:
    """(batch_per_rank, grad_accum) with which `world_size` ranks have exactly this effective batch."""
    share, rest = divmod(effective_batch, world_size)
    if rest or not share:
        raise ValueError(f"{world_size} ranks cannot share {effective_batch} samples")
    batch = max(n for n in range(1, min(share, most_per_rank) + 1) if share % n == 0)
    return batch, share // batch
