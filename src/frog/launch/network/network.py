"""The network of a launch, from the launcher's side: create, enter, cut, heal, remove.

The launcher and the network's switch exchange one line of JSON per message; the classes of the messages come first.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from types import TracebackType
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from frog.core.env import child_env
from frog.core.errors import LaunchError, UsageError
from frog.core.schema import Name, Natural, Typed, convert, decode
from frog.launch.network.link import Link


class SwitchSettings(Typed, frozen=True):
    """Arguments of the switch."""

    num_nodes: Annotated[int, Meta(ge=1, le=64)]
    link: Link


class SwitchRequest(Typed, frozen=True):
    """A request to cut off a node, to heal its link, or to describe the links."""

    act: Literal["cut", "heal", "describe"]
    node_rank: Natural | None


class SwitchReady(Typed, frozen=True):
    """The first answer: how programs enter the nodes, or the error."""

    error: str | None = None
    descriptors: Name = ""
    """Folder of the switch's open file descriptors."""
    nodes: list[list[Natural]] = field(default_factory=list)
    """Descriptors of each node's namespaces."""


_MAX_NODES = 64
_SWITCH = "an answer from the network's switch"
_ANSWER_S = 60.0
"""Timeout of the switch's answers. Normally they are immediate; only an overloaded machine is this slow."""

_NO_NETWORK = "omit --network: the nodes then communicate over this machine's loopback, at full speed"


class Network:
    """A network between simulated nodes; it exists inside the block `with Network(2, link) as network: …`

    Each node has a host name (node0, node1, …), an address, an interface and a loopback. Programs enter a node with the
    command prefix from `enter`; they keep the files, process ids and user of the machine.

    Raises:  LaunchError, on entering, if the system does not permit such a network.
    """

    interface = "eth0"
    """Name of the interface in every node, for GLOO_SOCKET_IFNAME."""

    def __init__(self, num_nodes: int, link: Link) -> None:
        if not 1 <= num_nodes <= _MAX_NODES:
            raise UsageError(f"--network supports 1 to {_MAX_NODES} nodes, not {num_nodes}")
        self.num_nodes, self.link = num_nodes, link
        self._switch: subprocess.Popen[bytes] | None = None
        self._made = SwitchReady()
        self._lock = threading.Lock()

    def __enter__(self) -> Network:
        _check_system()
        settings = json.dumps({"num_nodes": self.num_nodes, "link": asdict(self.link)})
        # In a separate session: Ctrl-C goes to the launcher, which still needs the network to end its ranks in order.
        self._switch = subprocess.Popen(
            [sys.executable, "-P", "-m", "frog.launch.network.switch", settings],
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
        """Return the node's address in the network."""
        from frog.launch.network.namespaces import address_of

        return address_of(node_rank, self.num_nodes)

    def enter(self, node_rank: int, command: list[str]) -> list[str]:
        """Return the command line that runs `command` inside a node, with the same process id and user."""
        namespaces = [f"{self._made.descriptors}/{descriptor}" for descriptor in self._made.nodes[node_rank]]
        return [sys.executable, "-P", "-m", "frog.launch.network.namespaces", *namespaces, "--", *command]

    def cut(self, node_rank: int) -> None:
        """Drop every frame to and from a node, including frames in transit, until `heal`."""
        self._ask("cut", node_rank)

    def heal(self, node_rank: int) -> None:
        """Deliver the node's frames again."""
        self._ask("heal", node_rank)

    def describe(self) -> dict[str, Any]:
        """Return the link's properties and each node's counters.

        `mean_late_s` and `worst_late_s` are the delays that the switch added to the requested one, because this machine
        is busy with the ranks.
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
            # Each request gets one answer, so all bytes belong to this one.
            part = self._switch.stdout.read(65536)
            if not part:
                raise LaunchError("the network's switch has ended", _NO_NETWORK)
            line += part
        return decode(line, dict[str, Any], _SWITCH, error=LaunchError)

    def _end(self) -> None:
        """Close the switch's input; it then ends and releases the namespaces."""
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
        f"this system does not permit programs to create networks: {reason}",
        "run as root; or permit user namespaces (in a container: --cap-add SYS_ADMIN --device /dev/net/tun);\n"
        f"       or {_NO_NETWORK}",
    )
