"""Numbers with units in profiles: "3200 Gbit/s", "80 GB", "79.1 GiB", "120 us", "2.50 USD/h"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from frog.core.errors import ConfigError
from frog.core.schema import shortened

_DECIMAL = {"": 1.0, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_UNITS = {"B": 1.0, "B/s": 1.0, "bit/s": 1 / 8, "FLOP/s": 1.0, "W": 1.0, "h": 3600.0, "s": 1.0}
_QUANTITY = re.compile(
    r"^\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)\s*(?:([kMGTP]?)(B/s|bit/s|FLOP/s|B|W|h)|([KMGT]i)(B)|([um]?)(s))\s*$"
)
_PRICE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Z]{3})/h\s*$")
_EXAMPLES = {"B": "79.1 GiB", "h": "400 h", "s": "400 us", "W": "700 W"}


@dataclass(frozen=True)
class Price:
    """What one GPU costs in an hour."""

    amount: float
    currency: str


def parse_quantity(text: Any, unit: str, place: str) -> float:
    """Parse a number with its unit, such as "3200 Gbit/s", to bytes, bytes per second, FLOP/s, watts or seconds.

    Raises:  ConfigError if the unit is missing or measures something else.
    """
    kinds = {"B/s": ("B/s", "bit/s")}.get(unit, (unit,))
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    prefix, named = (match[2] or match[4] or match[6] or "", match[3] or match[5] or match[7]) if match else ("", "")
    if match is None or named not in kinds or not 0 < float(match[1]) < math.inf:
        example = _EXAMPLES.get(unit, f"400 G{kinds[-1]}")
        raise ConfigError(
            f"{place}={shortened(repr(text))}: must be a number with a unit", f'write it like "{example}"'
        )
    return float(match[1]) * (_DECIMAL | _BINARY)[prefix] * _UNITS[named]


def read_quantity(text: Any, unit: str, place: str, problems: list[str]) -> float:
    """Parse a number with its unit, or add to the problems and return 1."""
    try:
        return parse_quantity(text, unit, place)
    except ConfigError as problem:
        problems.append(f"{problem.what}; {problem.hint}")
        return 1.0


def parse_price(text: Any, place: str = "price") -> Price:
    """Parse the price of one GPU, such as "2.50 USD/h".

    Raises:  ConfigError if the currency or the hour is missing.
    """
    match = _PRICE.match(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f"{place}={shortened(repr(text))}: must be a price per hour", 'write it like "2.50 USD/h"')
    return Price(float(match[1]), match[2])
