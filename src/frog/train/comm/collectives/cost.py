"""The choice of an algorithm for each message size, by latency and bandwidth (the alpha-beta model).

Sending a message of S bytes from one rank to another takes `alpha_s` + S `beta_s_per_byte`, and adding it takes
S `gamma_s_per_byte`. So n ranks need

    doubling   log2(n) (alpha + S beta + S gamma)                      few steps, all bytes in each
    ring       2(n-1) alpha + 2(n-1)/n S beta + (n-1)/n S gamma        many steps, the minimum number of bytes

All ranks must make the same choice: the constants are those of rank 0, and the choice depends on sizes only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from frog.core.env import cache_dir
from frog.core.errors import UsageError
from frog.core.schema import Typed, read_typed, write_typed


class CostFile(Typed, frozen=True):
    """The file that `frog collectives tune` writes."""

    KIND: ClassVar[str] = "the costs of this machine's collectives"
    FORMAT: ClassVar[int | None] = 1

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float


@dataclass(frozen=True)
class Costs:
    """The result of `frog collectives tune`. The defaults are typical for processes on one machine."""

    alpha_s: float = 40e-6
    beta_s_per_byte: float = 0.4e-9
    gamma_s_per_byte: float = 0.2e-9

    def doubling_s(self, num_bytes: int, num_ranks: int) -> float:
        power = 1 << (num_ranks.bit_length() - 1)
        steps = int(math.log2(power)) + (0 if power == num_ranks else 2)
        return steps * (self.alpha_s + num_bytes * (self.beta_s_per_byte + self.gamma_s_per_byte))

    def ring_s(self, num_bytes: int, num_ranks: int) -> float:
        part = num_bytes / num_ranks
        return (num_ranks - 1) * (2 * self.alpha_s + part * (2 * self.beta_s_per_byte + self.gamma_s_per_byte))

    def takes_ring(self, num_bytes: int, num_ranks: int) -> bool:
        """True if the ring is faster. The answer is the same on every rank."""
        return self.ring_s(num_bytes, num_ranks) < self.doubling_s(num_bytes, num_ranks)

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str | bytes) -> Costs:
        known = json.loads(text)
        return Costs(**{name: float(known[name]) for name in asdict(Costs())})

    @staticmethod
    def fit(num_bytes: Sequence[int], times_s: Sequence[float], gamma_s_per_byte: float) -> Costs:
        """Fit a line to the times of single doubling steps, with the same weight for small and large sizes.

        Raises:  ValueError if there are fewer than two sizes.
        """
        weights = [1 / time_s**2 for time_s in times_s]
        total = sum(weights)
        mean_x = sum(w * x for w, x in zip(weights, num_bytes, strict=True)) / total
        mean_y = sum(w * y for w, y in zip(weights, times_s, strict=True)) / total
        spread = sum(w * (x - mean_x) ** 2 for w, x in zip(weights, num_bytes, strict=True))
        if not spread:
            raise ValueError("fitting a line needs at least two sizes")
        slope = (
            sum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(weights, num_bytes, times_s, strict=True)) / spread
        )
        return Costs(max(mean_y - slope * mean_x, 1e-9), max(slope - gamma_s_per_byte, 1e-12), gamma_s_per_byte)


def cost_file() -> Path:
    """Return the file with the costs of this machine."""
    return cache_dir() / "collectives.json"


def save_costs(costs: Costs) -> Path:
    """Save the costs of this machine, for every group whose rank 0 runs here."""
    path = cost_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_typed(path, CostFile(**asdict(costs)))
    return path


def saved_costs() -> Costs:
    """Return the costs measured on this machine, or the defaults.

    Raises:  UsageError if the file cannot be read, or contains an impossible value.
    """
    path, hint = cost_file(), "measure again: frog collectives tune"
    try:
        known = read_typed(path, CostFile, hint, UsageError)
    except FileNotFoundError:
        return Costs()
    costs = Costs(known.alpha_s, known.beta_s_per_byte, known.gamma_s_per_byte)
    for name, value in asdict(costs).items():
        if not 0 < value < 1:
            raise UsageError(f"{path}: {name}={value}: expected seconds, above 0 and below 1", hint)
    return costs
