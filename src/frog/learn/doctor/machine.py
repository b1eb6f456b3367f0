"""A probe: `python -m frog.learn.doctor.machine WHAT` checks this machine's network, memory and processes.

Each check that may hang has its own WHAT and therefore its own process.
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

from frog.core.env import host_name, variable
from frog.core.files import scratch_folder, write_atomic
from frog.core.machine import free_bytes, usable_cores
from frog.core.processes import leave, leave_with_parent
from frog.core.schema import shortened
from frog.core.units import format_bytes, parse_whole
from frog.launch.network import Network, parse_network
from frog.learn.doctor.seen import SCRATCH, attempt

_LEAST_DISK, _LEAST_MEMORY, _LEAST_SHARED, _LEAST_FILES = 1 << 30, 2 << 30, 128 << 20, 512
_RANKS = 4
"""Size of the labs' largest world."""


def main(what: str, temporary: Path) -> None:
    """Run the checks named `what`.

    temporary: the default folder for programs' scratch files.
    """
    leave_with_parent()
    attempts = {"temporary folder": lambda: _disk(temporary)} if what == "files" else {}
    for name, look in (attempts | PROBES[what]).items():
        attempt(name, look)


def _resolves() -> str:
    return f"{host_name()} is {', '.join(_addresses())}"


def _reachable() -> str:
    """Return the addresses at which another machine could reach this one."""
    addresses = _addresses()
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        raise ValueError(
            f"{host_name()} is {', '.join(addresses)}, which other machines cannot reach: it is a loopback address"
        )
    return ", ".join(addresses)


def _addresses() -> list[str]:
    try:
        return sorted({str(address[4][0]) for address in socket.getaddrinfo(host_name(), None)})
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
                raise ValueError("127.0.0.1: received different bytes from those sent")
        return f"127.0.0.1:{server.getsockname()[1]} receives bytes"


def _cores() -> str:
    if (cores := usable_cores()) < 2:
        raise ValueError(f"{cores:g} for up to {_RANKS} ranks")
    return f"{cores:g}"


def _threads() -> str:
    """Check that OMP_NUM_THREADS does not overload the cores in the largest world."""
    asked, cores = variable("OMP_NUM_THREADS"), usable_cores()
    if asked is None:
        return "OMP_NUM_THREADS is not set: launchers divide the cores among the ranks"
    number = parse_whole(asked)
    if number is None or (number > 1 and number * _RANKS > cores):
        shown = shortened(asked)
        raise ValueError(f"OMP_NUM_THREADS={shown}: {_RANKS} ranks x {shown} threads on {cores:g} cores")
    return f"OMP_NUM_THREADS={asked}"


def _memory() -> str:
    return _at_least(_LEAST_MEMORY, free_bytes())


def _at_least(least: int, found: int) -> str:
    if found < least:
        raise ValueError(f"{format_bytes(found)} free, but the labs need {format_bytes(least)}")
    return f"{format_bytes(found)} free"


def _disk(folder: Path) -> str:
    """Write a file there and remove it."""
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
        raise ValueError(f"a process may open only {soft} files, but the labs need {_LEAST_FILES}")
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} per process"


def _watching() -> str:
    """Check that the file watcher notices a save."""
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
        return f"two simulated nodes, {network.address(0)} and {network.address(1)}"


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
