"""Ports that are published first and bound a few seconds later."""

from __future__ import annotations

import contextlib
import random
import socket

_RUNS = range(10_000, 30_000)
"""Ports below the ephemeral ports: Linux assigns those from 32768 on, macOS from 49152 on."""


def free_port(address: str = "127.0.0.1", among: range = _RUNS) -> int:
    """Return a port that no process uses now, and that the system does not assign on its own."""
    while True:
        port = random.choice(among)
        with contextlib.suppress(OSError), socket.create_server((address, port)):
            return port
