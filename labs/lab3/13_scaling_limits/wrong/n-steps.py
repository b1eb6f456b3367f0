"""Compute how far a job can scale over a given link."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """The link between two neighbours in the ring, with the figures of its data sheet."""

    rate_gbit_per_s: float  # 10^9 bits per second, in both directions at the same time
    delay_us: float  # 10^-6 s for one message, one way


@dataclass(frozen=True)
class Job:
    """One step of one rank, as measured by a profiler; the same for every rank and every number of ranks."""

    forward_s: float
    backward_s: float
    gradient_mib: float  # 2^20 bytes


def all_reduce_s(gradient_mib: float, num_ranks: int, link: Link) -> float:
    """Return the seconds that one ring all-reduce of the whole gradient takes. A world of 1 sends nothing.

    Assumes: the gradient is split into num_ranks equal parts; in each step of the ring every rank sends one part to its
             neighbour, which takes the delay plus its bytes divided by the rate. Steps follow one another.
    """
    part_bits = gradient_mib * 2**20 * 8 / num_ranks
    return 2 * num_ranks * (link.delay_us * 1e-6 + part_bits / (link.rate_gbit_per_s * 1e9))


def step_s(job: Job, num_ranks: int, link: Link, overlap: bool) -> float:
    """Return the seconds that a training step takes.

    Assumes: without overlap the all-reduce begins when backward has ended; with overlap, when backward begins (the
             first bucket is ready soon), and it does not slow backward down. The step ends when both have ended.
    """
    communication_s = all_reduce_s(job.gradient_mib, num_ranks, link)
    if overlap:
        return job.forward_s + max(job.backward_s, communication_s)
    return job.forward_s + job.backward_s + communication_s


def efficiency(job: Job, num_ranks: int, link: Link, overlap: bool) -> float:
    """Return the samples per second of num_ranks ranks, divided by num_ranks times those of one: 1 is the best."""
    return step_s(job, 1, link, overlap) / step_s(job, num_ranks, link, overlap)


def largest_world(job: Job, link: Link, overlap: bool, at_least: float, most: int) -> int:
    """Return the largest num_ranks, from 1 to `most`, whose efficiency is `at_least` or more."""
    return max(n for n in range(1, most + 1) if efficiency(job, n, link, overlap) >= at_least)
