"""A node's own network and host name, made by system calls: no privilege is kept, nothing is written to disk.

A namespace lives as long as a process is in it or holds it open. The switch holds it open and other programs enter it
through the switch's descriptors, so when the switch ends and the node's programs have ended, nothing is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from frog.core.namespaces import FILES, HOST_NAME, NETWORK, call_libc, unshare, unshare_as_same_user
from frog.launch.network.fabric import mac_of

INTERFACE = "eth0"

_BIND, _REMOUNT_SLAVE = 4096, 1 << 19 | 16384
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFHWADDR = 0x8916, 0x891C, 0x8922, 0x8924
_ARPHRD_ETHER = 1


@dataclass(frozen=True)
class Namespaces:
    """Descriptors of this process that hold one node's namespaces, and its interface's other end."""

    net: int
    uts: int
    tap: int


@dataclass(frozen=True)
class Shared:
    """Descriptors of the namespaces that all nodes are in: of mounts, and of users (None for root)."""

    mount: int
    user: int | None


def address_of(node_rank: int, num_nodes: int) -> str:
    """10.77.0.1 and so on. Every node has a network to itself, so this meets no address outside.

    torchrun numbers nodes in the order of their addresses as text, so ten and more all have three digits.
    """
    return f"10.77.0.{node_rank + (1 if num_nodes < 10 else 101)}"


def make_shared(num_nodes: int) -> Shared:
    """Become able to make networks: at once as root, else in a user namespace, where one is still the same user.

    All nodes see the files that are there; only /etc/hosts has a line more for each of them, so that they find each
    other by name and nobody asks a name server that no node reaches.

    Raises:  OSError if the system allows neither.
    """
    user = _hold("user") if unshare_as_same_user(FILES) else None
    call_libc("mount", None, b"/", None, _REMOUNT_SLAVE, None)
    with contextlib.suppress(OSError):
        _add_hosts(num_nodes)
    return Shared(_hold("mnt"), user)


def _add_hosts(num_nodes: int) -> None:
    """Lay another file over /etc/hosts. It has no name anywhere else, so it goes with the last node."""
    hosts = Path("/etc/hosts")
    addresses = {name_of(node_rank): address_of(node_rank, num_nodes) for node_rank in range(num_nodes)}
    lines = [f"{prefix}{address} {name}\n" for prefix in ("", "::ffff:") for name, address in addresses.items()]
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("".join(lines) + hosts.read_text())
        file.flush()
        os.chmod(file.name, 0o644)
        call_libc("mount", file.name.encode(), bytes(hosts), None, _BIND, None)


def name_of(node_rank: int) -> str:
    return f"node{node_rank}"


def make_node(node_rank: int, num_nodes: int, mtu: int) -> Namespaces:
    """A network of its own with a loopback and an Ethernet interface, and a host name. This process is in it after."""
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
    """Choose for this node what the machine may have chosen otherwise, where that is allowed."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv4", name).write_text(value)


def _request(name: str, value: bytes) -> bytes:
    """A `struct ifreq`: the interface's name, then what the call is about."""
    return struct.pack("16s24s", name.encode(), value)


def _internet(address: str) -> bytes:
    """A `struct sockaddr_in`."""
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def enter(descriptors: Iterable[str]) -> None:
    """Move this process, which has one thread, into the namespaces behind some paths: that of users first."""
    opened = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in descriptors]
    folder = os.getcwd()
    for descriptor in opened:
        call_libc("setns", descriptor, 0)
    os.chdir(folder)  # a new namespace of mounts begins at its root


def _hold(kind: str) -> int:
    """A descriptor that keeps this process's present namespace."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
