"""What the size of the world does to a training."""


def plan(
    num_samples: int, world_size: int, batch_per_rank: int, grad_accum: int, base_rate: float, base_batch: int
) -> dict[str, float]:
    """What one epoch is.

    num_samples:     in the data set; a sampler deals them out and pads.
    batch_per_rank:  samples of one rank in one micro-batch.
    grad_accum:      micro-batches of a rank in one step.
    base_rate:       the learning rate that was good at an effective batch of `base_batch`.

    Returns  "effective_batch": samples in one full step; "samples_per_rank": in an epoch, padding included;
             "steps": optimizer steps in an epoch, the last of which may be smaller;
             "learning_rate": by the linear rule.
    """
    raise NotImplementedError("fill in plan")


def keep_batch(effective_batch: int, world_size: int, most_per_rank: int) -> tuple[int, int]:
    """(batch_per_rank, grad_accum) with which `world_size` ranks have exactly this effective batch.

    batch_per_rank is not above `most_per_rank`, what fits into memory, and grad_accum is as small as that allows.

    Raises:  ValueError if there is no such pair.
    """
    raise NotImplementedError("fill in keep_batch")
