"""The network of a launch, as the launcher sees it: made, entered, cut and healed, and gone."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from types import TracebackType
from typing import Any

from frog.core.env import child_env
from frog.core.errors import LaunchError, UsageError
from frog.core.schema import convert, decode
from frog.launch.network.link import Link
from frog.launch.network.messages import SwitchReady

_MAX_NODES = 64
_SWITCH = "an answer of the network's switch"
_ANSWER_S = 60.0
"""The switch answers at once; only a machine that is far too busy takes longer."""

_NO_NETWORK = "leave --network away: the nodes then talk over this machine's own loopback, at its full speed"


class Network:
    """A network between pretended nodes for as long as one is inside: `with Network(2, link) as network: …`

    Inside each node: a host name (node0, node1, …), an address, an interface, a loopback. Programs enter a node by the
    prefix that `enter` gives; files, process ids and the user are those outside.

    Raises:  LaunchError, on entering, if this system allows no such thing.
    """

    interface = "eth0"
    """Inside every node: for GLOO_SOCKET_IFNAME."""

    def __init__(self, num_nodes: int, link: Link) -> None:
        if not 1 <= num_nodes <= _MAX_NODES:
            raise UsageError(f"--network: {num_nodes} nodes; it connects 1 to {_MAX_NODES}")
        self.num_nodes, self.link = num_nodes, link
        self._switch: subprocess.Popen[bytes] | None = None
        self._made = SwitchReady()
        self._lock = threading.Lock()

    def __enter__(self) -> Network:
        _check_system()
        settings = json.dumps({"num_nodes": self.num_nodes, "link": asdict(self.link)})
        # In a session of its own: Ctrl-C is for the launcher, which still needs the network to end its ranks in order.
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "frog.launch.network.switch", settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=child_env(),
            start_new_session=True,
        )
        try:
            self._made = convert(self._read_answer(), SwitchReady, _SWITCH, error=LaunchError)
            if self._made.error is not None:
                raise _refusal(self._made.error)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def address(self, node_rank: int) -> str:
        """The node's address, as the others see it."""
        from frog.launch.network.namespaces import address_of

        return address_of(node_rank, self.num_nodes)

    def enter(self, node_rank: int, command: list[str]) -> list[str]:
        """The command line that runs `command` inside a node, as the same process and user."""
        namespaces = [f"{self._made.descriptors}/{descriptor}" for descriptor in self._made.nodes[node_rank]]
        return [sys.executable, "-m", "frog.launch.network.enter", *namespaces, "--", *command]

    def cut(self, node_rank: int) -> None:
        """Drop every frame to and from a node, also those under way, until `heal`."""
        self._ask("cut", node_rank)

    def heal(self, node_rank: int) -> None:
        """Pass the node's frames on again."""
        self._ask("heal", node_rank)

    def describe(self) -> dict[str, Any]:
        """The link, and what went over each node's so far.

        `mean_late_s` and `worst_late_s` are how late the switch was with a frame: what this machine, busy with the
        ranks, added to the delay that was asked for.
        """
        return {**self.link.describe(), **self._ask("describe", None)}

    def _ask(self, act: str, node_rank: int | None) -> dict[str, Any]:
        if node_rank is not None and not 0 <= node_rank < self.num_nodes:
            raise UsageError(f"{act} node {node_rank}: the network has nodes 0 to {self.num_nodes - 1}")
        with self._lock:
            if self._switch is None or self._switch.stdin is None:
                raise LaunchError(f"{act}: the network is not up")
            try:
                self._switch.stdin.write(json.dumps({"act": act, "node_rank": node_rank}).encode() + b"\n")
            except OSError as error:
                raise LaunchError(f"{act}: the network's switch has ended: {error}") from None
            return self._read_answer()

    def _read_answer(self) -> dict[str, Any]:
        assert self._switch is not None
        assert self._switch.stdout is not None
        deadline, line = time.monotonic() + _ANSWER_S, b""
        while not line.endswith(b"\n"):
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._switch.stdout], [], [], left_s)[0]:
                raise LaunchError(f"the network's switch has not answered for {_ANSWER_S:.0f} s", _NO_NETWORK)
            # One answer for each question, so what is there is part of this one.
            part = self._switch.stdout.read(65536)
            if not part:
                raise LaunchError("the network's switch has ended", _NO_NETWORK)
            line += part
        return decode(line, dict[str, Any], _SWITCH, error=LaunchError)

    def _end(self) -> None:
        """The switch ends with its input, and with it all that it holds."""
        with self._lock:
            switch, self._switch = self._switch, None
        if switch is None or switch.stdin is None or switch.stdout is None:
            return
        switch.stdin.close()
        try:
            switch.wait(timeout=10)
        except subprocess.TimeoutExpired:
            switch.kill()
            switch.wait()
        switch.stdout.close()


def _check_system() -> None:
    if sys.platform != "linux":
        raise LaunchError(f"--network needs Linux's network namespaces; this is {sys.platform}", _NO_NETWORK)


def _refusal(reason: str) -> LaunchError:
    return LaunchError(
        f"this system does not let a program make networks of its own: {reason}",
        "as root; or allow it (user namespaces for users, in a container --cap-add SYS_ADMIN --device /dev/net/tun);\n"
        f"       or {_NO_NETWORK}",
    )
