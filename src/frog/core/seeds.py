"""Seeds that follow from names, so that no two uses of randomness share one by accident."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed that is a function of `seed` and `names` alone, the same on every machine."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
