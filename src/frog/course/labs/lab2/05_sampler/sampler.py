"""Which samples a rank takes in an epoch."""

from collections.abc import Iterator


class ShardedSampler:
    """The sample numbers of one rank, in the order of an epoch; after DistributedSampler.

    Every rank has one of these, made with its own `rank` and else the same arguments. They never communicate.

    num_samples:  in the data set, at least 1; they are numbered from 0.
    drop_last:    False: all shares are as long as the longest has to be; samples are repeated to fill them.
                  True: no sample is taken twice; the end of the shuffled list, fewer than world_size, is left out.
    """

    def __init__(self, num_samples: int, world_size: int, rank: int, seed: int = 0, drop_last: bool = False) -> None:
        raise NotImplementedError("fill in ShardedSampler")

    def set_epoch(self, epoch: int) -> None:
        """Choose the order: the same for the same epoch (and seed), whenever it is asked for. It begins with 0."""
        raise NotImplementedError("fill in set_epoch")

    def __len__(self) -> int:
        """How many samples this rank takes in an epoch."""
        raise NotImplementedError("fill in __len__")

    def __iter__(self) -> Iterator[int]:
        """The sample numbers. It leaves the random state of the process (torch, random, numpy) as it was."""
        raise NotImplementedError("fill in __iter__")
