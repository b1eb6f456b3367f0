"""Ports that are published first and bound some seconds later."""

from __future__ import annotations

import contextlib
import random
import socket

_RUNS = range(10_000, 30_000)
"""Below those that a system gives to whoever asks for any: from 32768 on with Linux, from 49152 on with macOS."""


def free_port(address: str = "127.0.0.1", among: range = _RUNS) -> int:
    """A port that nobody uses at this moment, and that nobody is given who asks for any."""
    while True:
        port = random.choice(among)
        with contextlib.suppress(OSError), socket.create_server((address, port)):
            return port
