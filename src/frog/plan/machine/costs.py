"""What operations cost on a measured machine.

A layer's time is a sum of a fixed part, arithmetic and memory traffic. Collectives and the optimizer, whose rate
depends on what fits into a cache, follow a measured curve. The costs of a world are measured while all its ranks work
at once, so they contain the competition for cores, caches and memory. A world of another size is derived from the
nearest smaller one that was measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from frog.plan.links import wire_bytes


@dataclass(frozen=True)
class Work:
    """What operations do: floating-point operations of products and of attention, bytes to and from memory."""

    products: float = 0.0
    attention: float = 0.0
    num_bytes: float = 0.0
    times: float = 1.0
    """How often they start."""

    def __mul__(self, factor: float) -> Work:
        return Work(*(value * factor for value in vars(self).values()))


@dataclass(frozen=True)
class Cost:
    """Seconds for each start, each floating-point operation and each byte."""

    fixed_s: float = 0.0
    products_s: float = 0.0
    attention_s: float = 0.0
    byte_s: float = 0.0

    def seconds(self, work: Work) -> float:
        """Return fixed + operations / rates + bytes / bandwidth."""
        return (
            self.fixed_s * work.times
            + self.products_s * work.products
            + self.attention_s * work.attention
            + self.byte_s * work.num_bytes
        )

    def __mul__(self, factor: float) -> Cost:
        return Cost(*(value * factor for value in vars(self).values()))


Sample = tuple[Work, float]
"""Work, and the seconds that it took."""


def fit_cost(samples: Sequence[Sample]) -> Cost:
    """Fit the cost with the smallest relative errors in which no part is negative."""
    work = np.array([[done.times, done.products, done.attention, done.num_bytes] for done, _ in samples])
    relative = work / np.array([[seconds] for _, seconds in samples])
    scales = np.where(relative.any(0), np.linalg.norm(relative, axis=0), 1.0)
    best, least = np.zeros(work.shape[1]), np.inf
    used = np.flatnonzero(relative.any(0)).tolist()
    for count in range(1, len(used) + 1):
        for columns in itertools.combinations(used, count):
            part = relative[:, columns] / scales[list(columns)]
            fitted, *_ = np.linalg.lstsq(part, np.ones(len(samples)), rcond=None)
            error = float(np.square(part @ fitted - 1).sum())
            if (fitted >= 0).all() and error < least:
                best, least = np.zeros(work.shape[1]), error
                best[list(columns)] = fitted / scales[list(columns)]
    return Cost(*best.tolist())


@dataclass(frozen=True)
class Curve:
    """Measured seconds by bytes, in ascending order."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, samples: Sequence[tuple[float, float]]) -> Curve:
        """Return the curve through measured points; fewer bytes take at most as long as more of them."""
        points, least = [], math.inf
        for num_bytes, seconds in sorted(samples, reverse=True):
            least = min(least, seconds)
            points.append((num_bytes, least))
        return cls(tuple(reversed(points)))

    def seconds(self, num_bytes: float) -> float:
        """Interpolate; a size below the first point takes as long as that, one above the last has the same rate."""
        sizes, times = zip(*self.points, strict=True)
        if num_bytes > sizes[-1]:
            return float(times[-1] * num_bytes / sizes[-1])
        return float(np.interp(num_bytes, sizes, times))

    def __mul__(self, factor: float) -> Curve:
        return Curve(tuple((num_bytes, seconds * factor) for num_bytes, seconds in self.points))


@dataclass(frozen=True)
class WorldCosts:
    """Costs on one rank while all ranks of a world do the same."""

    threads: int
    """Threads of each rank."""
    product_s: float
    """An operation of the product that stands for the speed of the machine."""
    launch_s: float
    """One small operation, with Python's share."""
    memory_s: float
    """Memory-bound operations, for each byte."""
    optimizer: Curve
    """Norm, clipping, AdamW and the reset of gradients, by the bytes that they move."""
    layer: Mapping[str, Cost]
    """Both passes through a layer of the model, by precision."""
    head: Mapping[str, Cost]
    """Both passes through the embedding, the last norm, the output matrix and the loss."""
    links: Mapping[str, Curve] = field(default_factory=dict)
    """Collectives over all ranks, by operation and bytes of payload. Those of tensor and sequence parallelism, with the
    autograd functions around them, are `tensor` (an all-reduce) and `sequence` (an all-gather or a reduce-scatter)."""


@dataclass(frozen=True)
class Machine:
    """The measured costs of one machine, by world size."""

    cores: float
    worlds: Mapping[int, WorldCosts]
    about: str = ""
    """When and where they were measured."""

    def nearest(self, num_ranks: int) -> WorldCosts:
        """Return the costs of the largest measured world of at most this size."""
        return self.worlds[self._size(num_ranks)]

    def slowdown(self, num_ranks: int) -> float:
        """Return by how much the ranks of a world slow down, of the nearest measured one: they share the cores."""
        return self._share(num_ranks) / self._share(self._size(num_ranks))

    def link_s(self, op: str, num_bytes: float, group: int, num_ranks: int) -> float:
        """Return the seconds of a collective in groups of this size, all at once, in a world of `num_ranks`.

        A group larger than measured passes on more bytes for a payload, in more hops, as in a ring.
        """
        size = max(
            (ranks for ranks in self.worlds if 1 < ranks <= group),
            default=min(ranks for ranks in self.worlds if ranks > 1),
        )
        moves = {"tensor": "all_reduce", "sequence": "all_gather"}.get(op, op)
        more = max(wire_bytes(moves, 1.0, group) / wire_bytes(moves, 1.0, size), (group - 1) / (size - 1))
        return self.worlds[size].links[op].seconds(num_bytes) * more * self._share(num_ranks) / self._share(size)

    def _share(self, num_ranks: int) -> float:
        """Return the threads for each core, at least one."""
        return max(1.0, num_ranks * self.nearest(num_ranks).threads / self.cores)

    def _size(self, num_ranks: int) -> int:
        return max((ranks for ranks in self.worlds if ranks <= num_ranks), default=min(self.worlds))
