"""Data parallelism."""

import torch
import torch.distributed as dist


class DataParallel(torch.nn.Module):
    """A module whose copies on all ranks stay equal.

    DataParallel(module, bucket_bytes)
        Gives every rank rank 0's parameters and buffers.
    forward
        Calls the module's forward.
    no_sync()
        A context manager. Gradients of backwards inside it stay on this rank, and add up.
    finish()
        Call it once per step, after the last backward, which was outside no_sync. After it each trained parameter's
        .grad is the mean, over the ranks, of the gradients accumulated there (a rank without a gradient counts as
        zero), and all buffers are rank 0's.

    Comm:  a step sends each trained parameter's gradient once, in buckets of at most `bucket_bytes` bytes (a larger
           gradient alone), filled from the last parameter to the first.
    """

    def __init__(self, module: torch.nn.Module, bucket_bytes: int) -> None:
        super().__init__()
        raise NotImplementedError("fill in DataParallel")
