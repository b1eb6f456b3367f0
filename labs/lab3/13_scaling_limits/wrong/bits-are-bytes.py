"""How far a job can be scaled over a given link, by arithmetic."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """What lies between two neighbours of the ring, as its data sheet says it."""

    rate_gbit_per_s: float  # 10^9 bits per second, in both directions at the same time
    delay_us: float  # 10^-6 s for one message, one way


@dataclass(frozen=True)
class Job:
    """A step of one rank, as a profiler says it; the same for every rank, however many there are."""

    forward_s: float
    backward_s: float
    gradient_mib: float  # 2^20 bytes


def all_reduce_s(gradient_mib: float, num_ranks: int, link: Link) -> float:
    """Seconds of one ring all-reduce of the whole gradient. A world of 1 sends nothing.

    Assumes: the gradient is cut into num_ranks equal parts; in each step of the ring every rank sends one part to its
             neighbour, and a part takes the delay and its bytes over the rate. Steps follow one another.
    """
    part_bits = gradient_mib * 2**20 / num_ranks
    return 2 * (num_ranks - 1) * (link.delay_us * 1e-6 + part_bits / (link.rate_gbit_per_s * 1e9))


def step_s(job: Job, num_ranks: int, link: Link, overlap: bool) -> float:
    """Seconds of a training step.

    Assumes: without overlap the all-reduce begins when backward has ended; with it, when backward begins (the first
             bucket is soon there), and nothing of it slows backward down. The step ends when both have ended.
    """
    communication_s = all_reduce_s(job.gradient_mib, num_ranks, link)
    if overlap:
        return job.forward_s + max(job.backward_s, communication_s)
    return job.forward_s + job.backward_s + communication_s


def efficiency(job: Job, num_ranks: int, link: Link, overlap: bool) -> float:
    """Samples a second of num_ranks ranks, over num_ranks times those of one: 1 is as good as it can be."""
    return step_s(job, 1, link, overlap) / step_s(job, num_ranks, link, overlap)


def largest_world(job: Job, link: Link, overlap: bool, at_least: float, most: int) -> int:
    """The largest num_ranks, from 1 to `most`, whose efficiency is `at_least` or more."""
    return max(n for n in range(1, most + 1) if efficiency(job, n, link, overlap) >= at_least)
