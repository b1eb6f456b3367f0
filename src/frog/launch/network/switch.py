"""The switch between simulated nodes, a separate process: python -m frog.launch.network.switch '{"num_nodes": 2, …}'

It creates the nodes' networks, then forwards their frames at the times that the fabric computes. It reads requests as
lines of JSON ({"act": "cut", "node_rank": 1}, "heal", "describe") and answers each with a line. It ends when its input
closes, and so also when the process that started it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from typing import Any

from frog.core.errors import LaunchError
from frog.core.schema import decode
from frog.launch.network.fabric import Fabric
from frog.launch.network.messages import SwitchRequest, SwitchSettings
from frog.launch.network.namespaces import Namespaces, make_node, make_shared

_INPUT, _OUTPUT = 0, 1
_AT_ONCE = 32
"""Frames to read from one node before the next node's turn."""


def main() -> int:
    """Create the nodes, print how to enter them, and serve until the input ends."""
    settings = decode(sys.argv[1], SwitchSettings, "the switch's settings", error=LaunchError)
    num_nodes, link = settings.num_nodes, settings.link
    try:
        shared = make_shared(num_nodes)
        nodes = [make_node(node_rank, num_nodes, link.mtu) for node_rank in range(num_nodes)]
    except OSError as error:
        at = f" {error.filename}" if error.filename else ""
        _say({"error": f"{error.strerror}{at}"})
        return 1
    around = [shared.mount] if shared.user is None else [shared.user, shared.mount]
    _say({"descriptors": f"/proc/{os.getpid()}/fd", "nodes": [[*around, node.net, node.uts] for node in nodes]})
    Switch(nodes, Fabric(num_nodes, link), link.mtu).serve()
    return 0


class Switch:
    """Moves frames between the nodes' interfaces."""

    def __init__(self, nodes: list[Namespaces], fabric: Fabric, mtu: int) -> None:
        self._taps = [node.tap for node in nodes]
        self._node_of = {tap: node_rank for node_rank, tap in enumerate(self._taps)}
        self._fabric, self._frame_bytes = fabric, mtu + 18
        self._requests = b""

    def serve(self) -> None:
        """Forward frames and answer requests until the input ends."""
        fabric = self._fabric
        watched = [*self._taps, _INPUT]  # read earlier frames before answering a request
        while True:
            due_s = fabric.due_s
            timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
            ready, _, _ = select.select(watched, [], [], timeout_s)
            for descriptor in ready:
                if descriptor != _INPUT:
                    self._read_frames(descriptor)
                elif not self._answer():
                    return
            fabric.deliver(time.monotonic(), self._write)

    def _read_frames(self, tap: int) -> None:
        node_rank = self._node_of[tap]
        for _ in range(_AT_ONCE):
            try:
                frame = os.read(tap, self._frame_bytes)
            except BlockingIOError:
                return
            self._fabric.take(time.monotonic(), node_rank, frame)

    def _write(self, node_rank: int, frame: bytes) -> None:
        # A node without space for a frame loses it, like a network card.
        with contextlib.suppress(OSError):
            os.write(self._taps[node_rank], frame)

    def _answer(self) -> bool:
        """Handle requests; return False when the input has ended."""
        found = os.read(_INPUT, 65536)
        *lines, self._requests = (self._requests + found).split(b"\n")
        for line in lines:
            request = decode(line, SwitchRequest, "a request to the switch", error=LaunchError)
            if request.act == "cut" and request.node_rank is not None:
                self._fabric.cut(request.node_rank)
            elif request.act == "heal" and request.node_rank is not None:
                self._fabric.heal(request.node_rank)
            _say(self._fabric.describe())
        return bool(found)


def _say(answer: dict[str, Any]) -> None:
    os.write(_OUTPUT, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
