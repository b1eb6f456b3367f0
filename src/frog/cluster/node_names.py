"""Names of simulated nodes: a private /etc/hosts, and in the emulator each node's own host name.

All simulated nodes are this machine, so no name server knows them. A process that `NodeNames.enter` prepares sees
another /etc/hosts, in which each node's name has a loopback address; no other process sees it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frog.core import namespaces
from frog.core.errors import FrogError
from frog.core.files import write_atomic

_SYSTEM_HOSTS = "/etc/hosts"
_PROBE_S = 60.0


@dataclass(frozen=True)
class NodeNames:
    """A file in the format of /etc/hosts that lists the nodes first."""

    hosts: Path

    def enter(self, host: str | None = None) -> None:
        """Let this process and its children resolve the nodes' names, and give them the host name `host`.

        Raises:  OSError if the system allows this neither to root nor in a user namespace.
        """
        namespaces.unshare_as_same_user(namespaces.HOST_NAME)
        namespaces.separate_mounts()
        namespaces.bind(str(self.hosts), _SYSTEM_HOSTS)
        if host is not None:
            socket.sethostname(host)

    def enter_if_possible(self, host: str | None = None) -> None:
        """Enter; if that fails, say so on stderr and continue. For a process between fork and exec."""
        try:
            self.enter(host)
        except OSError as error:
            os.write(2, f"frog: the names of the nodes do not resolve in this process ({error})\n".encode())


def loopback_addresses(names: Sequence[str]) -> dict[str, str]:
    """Return a loopback address for each node, all different, so that each name is its own in both directions."""
    return {name: f"127.1.0.{number}" for number, name in enumerate(names, 1)}


def provide_names(hosts: Path, addresses: Mapping[str, str], *, rename: bool) -> tuple[NodeNames | None, str | None]:
    """Write the file of hosts and try it. Return the names, or None; and what a user should know, or None.

    Without namespaces, names that already resolve to this machine need no more. `rename` tries a host name too.
    """
    write_atomic(hosts, _hosts_text(addresses))
    problem = _try(hosts, addresses, rename=rename)
    if problem is None:
        return NodeNames(hosts), None
    hosts.unlink()
    if all((resolve(name) or "").startswith("127.") for name in addresses):
        return None, None
    return None, (
        f"the names of the nodes do not resolve here: {problem}\n"
        f"  try: for job files that use them as MASTER_ADDR, add to {_SYSTEM_HOSTS}: 127.0.0.1 {' '.join(addresses)}"
    )


def _hosts_text(addresses: Mapping[str, str]) -> str:
    """Return the system's file, after the nodes: the first line with a name or an address counts."""
    try:
        rest = Path(_SYSTEM_HOSTS).read_text(errors="replace")
    except OSError:
        rest = "127.0.0.1 localhost\n"
    return "".join(f"{address} {name}\n" for name, address in addresses.items()) + rest


def _try(hosts: Path, addresses: Mapping[str, str], *, rename: bool) -> str | None:
    """Return why a process cannot resolve the names, or None if one could."""
    if sys.platform != "linux":
        return "this system has no namespaces"
    name, address = next(iter(addresses.items()))
    words = [sys.executable, "-P", "-m", "frog.cluster.node_names", str(hosts), name, address, str(int(rename))]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no answer"])[-1]


def resolve(name: str) -> str | None:
    """Return the IPv4 address of a host's name, or None."""
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])
    except OSError:
        return None


def main(words: Sequence[str]) -> int:
    """Enter as one node and check that its name resolves: HOSTS NAME ADDRESS RENAME."""
    hosts, name, address, rename = words
    try:
        NodeNames(Path(hosts)).enter(name if rename == "1" else None)
    except (OSError, FrogError) as error:
        print(error, file=sys.stderr)
        return 1
    resolved = resolve(name)
    if resolved != address:
        print(f"{name} has the address {resolved} in spite of {_SYSTEM_HOSTS}", file=sys.stderr)
    return int(resolved != address)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
