"""Which algorithm for which message: latency and bandwidth decide (the alpha-beta model).

A message of S bytes takes `alpha_s` + S `beta_s_per_byte` from one rank to another. So, of n ranks,

    doubling   log2(n) (alpha + S beta)                       few steps, all bytes in each
    ring       2(n-1) alpha + 2(n-1)/n S beta                 many steps, no byte more than must be

Everybody must choose alike: the constants are those of rank 0, and the choice looks at nothing but sizes.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Costs:
    """What `frog collectives tune` measures. Without it, what is sensible between processes of one machine."""

    alpha_s: float = 40e-6
    beta_s_per_byte: float = 0.5e-9

    def doubling_s(self, num_bytes: int, num_ranks: int) -> float:
        power = 1 << (num_ranks.bit_length() - 1)
        steps = int(math.log2(power)) + (0 if power == num_ranks else 2)
        return steps * (self.alpha_s + num_bytes * self.beta_s_per_byte)

    def ring_s(self, num_bytes: int, num_ranks: int) -> float:
        return 2 * (num_ranks - 1) * (self.alpha_s + num_bytes / num_ranks * self.beta_s_per_byte)

    def takes_ring(self, num_bytes: int, num_ranks: int) -> bool:
        """Whether the ring is the faster one. The same answer on every rank."""
        return self.ring_s(num_bytes, num_ranks) < self.doubling_s(num_bytes, num_ranks)

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str | bytes) -> Costs:
        known = json.loads(text)
        return Costs(float(known["alpha_s"]), float(known["beta_s_per_byte"]))
