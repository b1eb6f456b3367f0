"""A node's own network and host name, created by system calls: keeps no privileges and writes nothing to disk.

A namespace exists as long as a process is in it or holds it open. The switch holds it open, and other programs enter it
through the switch's descriptors. So when the switch and the node's programs have ended, nothing remains.

    python -m frog.launch.network.namespaces NAMESPACE... -- COMMAND...

runs a program inside a node. The namespaces are paths that the switch holds open; the process becomes the program and
keeps its process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from frog.core.namespaces import FILES, HOST_NAME, NETWORK, call_libc, unshare, unshare_as_same_user

INTERFACE = "eth0"

_BIND, _REMOUNT_SLAVE = 4096, 1 << 19 | 16384
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFHWADDR = 0x8916, 0x891C, 0x8922, 0x8924
_ARPHRD_ETHER = 1


@dataclass(frozen=True)
class Namespaces:
    """Descriptors that hold one node's namespaces, and the other end of its interface."""

    net: int
    uts: int
    tap: int


@dataclass(frozen=True)
class Shared:
    """Descriptors of the namespaces that all nodes share: mounts, and users (None for root)."""

    mount: int
    user: int | None


def address_of(node_rank: int, num_nodes: int) -> str:
    """Return 10.77.0.1 and so on. Every node has its own network, so addresses outside do not conflict.

    torchrun orders nodes by their addresses as text, so with ten or more nodes the last number has three digits.
    """
    return f"10.77.0.{node_rank + (1 if num_nodes < 10 else 101)}"


def make_shared(num_nodes: int) -> Shared:
    """Gain the right to create networks: directly as root, else in a user namespace with the same user id.

    All nodes see the machine's files. Only /etc/hosts has additional lines, one per node, so that nodes find each other
    by name without a name server, which no node could reach.

    Raises:  OSError if the system allows neither.
    """
    user = _hold("user") if unshare_as_same_user(FILES) else None
    call_libc("mount", None, b"/", None, _REMOUNT_SLAVE, None)
    with contextlib.suppress(OSError):
        _add_hosts(num_nodes)
    return Shared(_hold("mnt"), user)


def _add_hosts(num_nodes: int) -> None:
    """Mount another file over /etc/hosts. It has no other name, so it disappears with the last node."""
    hosts = Path("/etc/hosts")
    addresses = {name_of(node_rank): address_of(node_rank, num_nodes) for node_rank in range(num_nodes)}
    lines = [f"{prefix}{address} {name}\n" for prefix in ("", "::ffff:") for name, address in addresses.items()]
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("".join(lines) + hosts.read_text())
        file.flush()
        os.chmod(file.name, 0o644)
        call_libc("mount", file.name.encode(), bytes(hosts), None, _BIND, None)


def mac_of(node_rank: int) -> bytes:
    """Return a locally administered hardware address, the same in every run."""
    return bytes([2, 0, 10, 77]) + (node_rank + 1).to_bytes(2, "big")


def name_of(node_rank: int) -> str:
    return f"node{node_rank}"


def make_node(node_rank: int, num_nodes: int, mtu: int) -> Namespaces:
    """Create a network with a loopback and an Ethernet interface, and a host name. This process enters it."""
    unshare(NETWORK | HOST_NAME)
    socket.sethostname(name_of(node_rank))
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, _request(INTERFACE, struct.pack("=H", _IFF_TAP | _IFF_NO_PI)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:

        def change(what: int, value: bytes, name: str = INTERFACE) -> None:
            fcntl.ioctl(control, what, _request(name, value))

        change(_SIOCSIFHWADDR, struct.pack("=H", _ARPHRD_ETHER) + mac_of(node_rank))
        change(_SIOCSIFMTU, struct.pack("=i", mtu))
        for name in ("lo", INTERFACE):
            flags = struct.unpack_from("=H", fcntl.ioctl(control, _SIOCGIFFLAGS, _request(name, b"")), 16)[0]
            change(_SIOCSIFFLAGS, struct.pack("=H", flags | _IFF_UP), name)
        change(_SIOCSIFADDR, _internet(address_of(node_rank, num_nodes)))
        change(_SIOCSIFNETMASK, _internet("255.255.0.0"))
    _set_tcp("tcp_congestion_control", "cubic")
    return Namespaces(_hold("net"), _hold("uts"), tap)


def _set_tcp(name: str, value: str) -> None:
    """Override a TCP setting of the machine for this node, if permitted."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv4", name).write_text(value)


def _request(name: str, value: bytes) -> bytes:
    """Build a `struct ifreq`: the interface's name, then the value."""
    return struct.pack("16s24s", name.encode(), value)


def _internet(address: str) -> bytes:
    """Build a `struct sockaddr_in`."""
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def enter(descriptors: Iterable[str]) -> None:
    """Move this single-threaded process into the namespaces at these paths, the user namespace first."""
    opened = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in descriptors]
    folder = os.getcwd()
    for descriptor in opened:
        call_libc("setns", descriptor, 0)
    os.chdir(folder)  # a new mount namespace starts at its root


def _hold(kind: str) -> int:
    """Open a descriptor that keeps this process's current namespace alive."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def main(arguments: list[str]) -> int:
    """Enter the namespaces and execute the command. Returns only on failure."""
    split = arguments.index("--")
    command = arguments[split + 1 :]
    try:
        enter(arguments[:split])
        os.execvp(command[0], command)
    except OSError as error:
        at = f" {error.filename}" if error.filename else ""
        print(f"error: {command[0]} inside a node of --network: {error.strerror}{at}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
