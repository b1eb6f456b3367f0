"""What a node's link is like, read from words such as "rate=100mbit delay=20ms loss=0.1%", with tc's units."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from frog.core.errors import UsageError

MAX_RATE_BITS_PER_S = 1e9
"""The switch is a Python program. One stream over a link of this rate had 99 % of it, all links together carried 4.7 to
4.9 times as much (benchmarks/results/network.txt, two quiet cores); beyond, the switch would be what is slow."""

_MAX_DELAY_S = 10.0
_MIN_RATE_BITS_PER_S = 1e4

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_TIMES_S = {"us": 1e-6, "usec": 1e-6, "usecs": 1e-6, "ms": 1e-3, "msec": 1e-3, "msecs": 1e-3}
_TIMES_S |= {"s": 1.0, "sec": 1.0, "secs": 1.0}

_FORMS = {
    "rate": "a rate as tc writes it: 100mbit, 1gbit, 12mbps (bytes), 512kibit",
    "delay": "a time as tc writes it: 20ms, 500us, 0.1s",
    "loss": "a share of all frames, from 0% to below 100%: 0.1%",
    "seed": "a whole number from 0",
}
_EXAMPLE = '--network "rate=100mbit delay=20ms"'


@dataclass(frozen=True)
class Link:
    """The link between a node and the switch; every node has one like it. It carries both directions at once."""

    rate_bits_per_s: float = MAX_RATE_BITS_PER_S
    """Of each direction."""
    delay_s: float = 0.0
    """From one node to another, one way; a ping takes twice as long."""
    loss: float = 0.0
    """Share of the frames that are lost on the way, at random."""
    seed: int = 0
    """Of the draws of which frames are lost."""

    @property
    def mtu(self) -> int:
        """Bytes of a packet. Links of 100 Mbit/s and more carry jumbo frames: a sixth of the work for the switch."""
        return 9000 if self.rate_bits_per_s >= 1e8 else 1500

    @property
    def queue_bytes(self) -> int:
        """What waits on either side of a link before frames are dropped.

        As much as the link carries in 0.1 s and one round trip: a TCP connection that fills the link needs one round
        trip of queue to keep it full (the rule of routers), and the rest stands for the memory of the sender's host,
        which would hold frames back and not drop them.
        """
        return int(self.rate_bits_per_s / 8 * (2 * self.delay_s + 0.1)) + 16 * self.mtu

    def describe(self) -> dict[str, Any]:
        """As plain data: for the launcher's events, and for the switch."""
        return {**asdict(self), "mtu": self.mtu}

    def __str__(self) -> str:
        loss = f", loses {100 * self.loss:g} %" if self.loss else ""
        return f"{self.rate_bits_per_s / 1e6:g} Mbit/s, {1e3 * self.delay_s:g} ms one way{loss}"


def parse_network(text: str) -> Link:
    """Read the words of `--network`.

    Raises:  UsageError, naming the word, if one is not of the known form.
    """
    fields: dict[str, Any] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or key not in _FORMS:
            raise UsageError(f"--network: {word!r} is none of {', '.join(f'{name}=…' for name in _FORMS)}", _EXAMPLE)
        if key in fields:
            raise UsageError(f"--network: {key} is given twice: {fields[key]!r} and {value!r}", _EXAMPLE)
        fields[key] = value
    if not fields:
        raise UsageError("--network says nothing of the link", _EXAMPLE)
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
            f"--network: rate={text} is {rate / 1e6:g} Mbit/s; the switch between the nodes carries "
            f"{_MIN_RATE_BITS_PER_S / 1e6:g} to {MAX_RATE_BITS_PER_S / 1e6:g} Mbit/s for each",
            "a slower link; without --network the nodes talk at this machine's own speed",
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
