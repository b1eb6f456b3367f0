"""The properties of a node's link, parsed from text such as "rate=100mbit delay=20ms loss=0.1%", with tc's units."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from frog.core.errors import UsageError

MAX_RATE_BITS_PER_S = 1e9
"""The switch is a Python program. One stream over a link of this rate reached 99 % of it, and all links together 4.7 to
4.9 times the rate (benchmarks/results/network.txt, two idle cores); at higher rates, the switch is the bottleneck."""

_MAX_DELAY_S = 10.0
_MIN_RATE_BITS_PER_S = 1e4

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_TIMES_S = {"us": 1e-6, "usec": 1e-6, "usecs": 1e-6, "ms": 1e-3, "msec": 1e-3, "msecs": 1e-3}
_TIMES_S |= {"s": 1.0, "sec": 1.0, "secs": 1.0}

_FORMS = {
    "rate": "a rate in tc's format: 100mbit, 1gbit, 12mbps (bytes), 512kibit",
    "delay": "a time in tc's format: 20ms, 500us, 0.1s",
    "loss": "a percentage of frames, from 0% to below 100%: 0.1%",
    "seed": "an integer, 0 or more",
}
_EXAMPLE = '--network "rate=100mbit delay=20ms"'


@dataclass(frozen=True)
class Link:
    """The full-duplex link between a node and the switch; all nodes have the same."""

    rate_bits_per_s: float = MAX_RATE_BITS_PER_S
    """Rate of each direction."""
    delay_s: float = 0.0
    """One-way delay between two nodes; a ping takes twice as long."""
    loss: float = 0.0
    """Fraction of frames lost at random."""
    seed: int = 0
    """Seed of the random losses."""

    @property
    def mtu(self) -> int:
        """Bytes per packet. Links of 100 Mbit/s or more carry jumbo frames, a sixth of the work for the switch."""
        return 9000 if self.rate_bits_per_s >= 1e8 else 1500

    @property
    def queue_bytes(self) -> int:
        """Queue size on either side of a link, above which frames are dropped.

        It holds the bytes that the link carries in 0.1 s and one round trip. A TCP connection needs one round trip of
        queue to keep the link full (a rule for routers); the rest models the memory of the sender's host, which would
        delay frames instead of dropping them.
        """
        return int(self.rate_bits_per_s / 8 * (2 * self.delay_s + 0.1)) + 16 * self.mtu

    def describe(self) -> dict[str, Any]:
        """Return plain data for the launcher's events and for the switch."""
        return {**asdict(self), "mtu": self.mtu}

    def __str__(self) -> str:
        loss = f", loses {100 * self.loss:g} %" if self.loss else ""
        return f"{self.rate_bits_per_s / 1e6:g} Mbit/s, {1e3 * self.delay_s:g} ms one way{loss}"


def parse_network(text: str) -> Link:
    """Parse the value of `--network`.

    Raises:  UsageError that names the first invalid word.
    """
    fields: dict[str, Any] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or key not in _FORMS:
            raise UsageError(f"--network: {word!r} is not one of {', '.join(f'{name}=…' for name in _FORMS)}", _EXAMPLE)
        if key in fields:
            raise UsageError(f"--network: {key} is given twice: {fields[key]!r} and {value!r}", _EXAMPLE)
        fields[key] = value
    if not fields:
        raise UsageError("--network is empty", _EXAMPLE)
    read: dict[str, Callable[[str], Any]] = {"rate": _rate, "delay": _delay, "loss": _loss, "seed": _seed}
    names = {"rate": "rate_bits_per_s", "delay": "delay_s"}
    return Link(**{names.get(key, key): read[key](value) for key, value in fields.items()})


def _rate(text: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)([kmg]i?)?(bit|bps)", text.lower())
    if match is None:
        raise _unreadable("rate", text)
    bits = 8 if match[3] == "bps" else 1
    rate = float(match[1]) * _PREFIXES[match[2] or ""] * bits
    if not _MIN_RATE_BITS_PER_S <= rate <= MAX_RATE_BITS_PER_S:
        raise UsageError(
            f"--network: rate={text} is {rate / 1e6:g} Mbit/s; the switch supports "
            f"{_MIN_RATE_BITS_PER_S / 1e6:g} to {MAX_RATE_BITS_PER_S / 1e6:g} Mbit/s per node",
            "choose a slower link; without --network the nodes communicate at this machine's full speed",
        )
    return rate


def _delay(text: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)([a-z]+)", text.lower())
    if match is None or match[2] not in _TIMES_S:
        raise _unreadable("delay", text)
    delay_s = float(match[1]) * _TIMES_S[match[2]]
    if delay_s > _MAX_DELAY_S:
        raise UsageError(f"--network: delay={text} is more than {_MAX_DELAY_S:g} s", _EXAMPLE)
    return delay_s


def _loss(text: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)%", text)
    if match is None or float(match[1]) >= 100:
        raise _unreadable("loss", text)
    return float(match[1]) / 100


def _seed(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise _unreadable("seed", text)
    return int(text)


def _unreadable(key: str, text: str) -> UsageError:
    return UsageError(f"--network: {key}={text} is not {_FORMS[key]}", _EXAMPLE)
