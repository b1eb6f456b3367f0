"""A probe: `python -m frog.learn.doctor.machine WHAT` looks at this machine: its network, its memory, its processes.

What may hang has a WHAT, and so a process, to itself.
"""

from __future__ import annotations

import ipaddress
import itertools
import multiprocessing
import os
import resource
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import watchfiles

from frog.core import memory
from frog.core.cores import usable_cores
from frog.core.env import host_name, variable
from frog.core.files import write_atomic
from frog.core.processes import leave, leave_with_parent
from frog.core.scratch import scratch_folder
from frog.core.units import format_bytes
from frog.launch.network import Network, parse_network
from frog.learn.doctor.seen import SCRATCH, attempt

_LEAST_DISK, _LEAST_MEMORY, _LEAST_SHARED, _LEAST_FILES = 1 << 30, 2 << 30, 128 << 20, 512
_RANKS = 4
"""The largest world of the labs."""


def main(what: str, temporary: Path) -> None:
    """temporary: where programs put their scratch files, if nobody gives them another place."""
    leave_with_parent()
    attempts = {"temporary folder": lambda: _disk(temporary)} if what == "files" else {}
    for name, look in (attempts | PROBES[what]).items():
        attempt(name, look)


def _resolves() -> str:
    return f"{host_name()} is {', '.join(_addresses())}"


def _reachable() -> str:
    """An address that another machine could be told."""
    addresses = _addresses()
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        raise ValueError(
            f"{host_name()} is {', '.join(addresses)}, which on any other machine means that machine itself"
        )
    return ", ".join(addresses)


def _addresses() -> list[str]:
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(host_name(), None)})
    except OSError as problem:
        raise ValueError(f"{host_name()} does not resolve: {problem.strerror}") from None


def _ports(num_bytes: int = 1 << 16) -> str:
    """Send bytes through a port of this machine."""
    sent = os.urandom(num_bytes)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), timeout=5)
        accepted, _ = server.accept()
        with client, accepted:
            accepted.settimeout(5)
            threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
            received = bytearray()
            while len(received) < num_bytes and (part := accepted.recv(1 << 16)):
                received += part
            if received != sent:
                raise ValueError("127.0.0.1: received other bytes than were sent")
        return f"bytes arrive at 127.0.0.1:{server.getsockname()[1]}"


def _cores() -> str:
    if (cores := usable_cores()) < 2:
        raise ValueError(f"{cores:g} for up to {_RANKS} ranks")
    return f"{cores:g}"


def _threads() -> str:
    """As many as would be busy at once in the largest world."""
    asked, cores = variable("OMP_NUM_THREADS"), usable_cores()
    if asked is None:
        return "OMP_NUM_THREADS is not set: launchers divide the cores among ranks"
    if not asked.isdecimal() or (int(asked) > 1 and int(asked) * _RANKS > cores):
        raise ValueError(f"OMP_NUM_THREADS={asked}: {_RANKS} ranks x {asked} threads on {cores:g} cores")
    return f"OMP_NUM_THREADS={asked}"


def _memory() -> str:
    return _at_least(_LEAST_MEMORY, memory.free_bytes())


def _at_least(least: int, found: int) -> str:
    if found < least:
        raise ValueError(f"{format_bytes(found)} free, but the labs need {format_bytes(least)}")
    return f"{format_bytes(found)} free"


def _disk(folder: Path) -> str:
    """A file is written there, and goes again."""
    try:
        with scratch_folder(SCRATCH, folder) as scratch:
            write_atomic(scratch / "a", "a" * (1 << 20))
    except OSError as problem:
        raise ValueError(f"{folder}: cannot write: {problem.strerror}") from None
    return f"{folder}: {_at_least(_LEAST_DISK, shutil.disk_usage(folder).free)}"


def _shared_memory() -> str:
    folder = Path("/dev/shm")
    return _at_least(_LEAST_SHARED, shutil.disk_usage(folder).free) if folder.is_dir() else "not used on this system"


def _open_files() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        raise ValueError(f"a process may open {soft} files, but the labs need {_LEAST_FILES}")
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} a process"


def _watching() -> str:
    """A file that is saved is noticed."""
    with scratch_folder(SCRATCH, Path.cwd()) as folder:
        looks = watchfiles.watch(folder, rust_timeout=100, yield_on_timeout=True, step=20, debounce=100)
        next(looks)
        (folder / "a").write_text("a")
        if not any(itertools.islice(looks, 30)):
            raise ValueError("the watcher did not notice a save in this folder for 3 s")
    return "the watcher notices a save"


def _fork() -> str:
    child = os.fork()
    if child == 0:
        os._exit(7)
    if (code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) != 7:
        raise ValueError(f"a forked process ended with {code}, expected 7")
    return "works"


def _spawn() -> str:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=leave, args=(7,))
    process.start()
    process.join()
    if process.exitcode != 7:
        raise ValueError(f"a spawned process ended with {process.exitcode}, expected 7")
    return "works"


def _namespaces() -> str:
    with Network(2, parse_network("rate=100mbit")) as network:
        return f"two simulated nodes,  {network.address(0)} and {network.address(1)}"


PROBES: dict[str, dict[str, Callable[[], str]]] = {
    "here": {
        "cores": _cores,
        "threads": _threads,
        "memory": _memory,
        "shared memory": _shared_memory,
        "open files": _open_files,
        "ports": _ports,
        "fork": _fork,
        "spawn": _spawn,
    },
    "name": {"host name": _resolves, "host address": _reachable},
    "files": {
        "disk": lambda: _disk(Path.cwd()),
        "file watching": _watching,
    },
    "namespaces": {"namespaces": _namespaces},
}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
