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


def all_reduce_s(gradient_mib, num_ranks, link):
    steps = 2 * (num_ranks - 1)
    part = gradient_mib * 2**20 / num_ranks
    return steps * (link.delay_us * 1e-6 + part * 8 / (link.rate_gbit_per_s * 1e9))


def step_s(job, num_ranks, link, overlap):
    comm = all_reduce_s(job.gradient_mib, num_ranks, link)
    return job.forward_s + (max(job.backward_s, comm) if overlap else job.backward_s + comm)


def efficiency(job, num_ranks, link, overlap):
    return (job.forward_s + job.backward_s) / step_s(job, num_ranks, link, overlap)


def largest_world(job, link, overlap, at_least, most):
    best = 0
    for n in range(1, most + 1):
        if efficiency(job, n, link, overlap) > at_least:
            best = n
    return best
