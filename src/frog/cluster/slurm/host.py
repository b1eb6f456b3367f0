"""Host name and address of the daemons of a cluster on one machine."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys

from frog.core.errors import LaunchError


def choose_host() -> tuple[str, str]:
    """Return a host name and its loopback address.

    A daemon, and srun too, listens only at the address that its machine's name resolves to (NoInAddrAny). If that is
    not the loopback interface, the daemons use another name that is: localhost.

    Raises:  LaunchError if the name does not resolve, or if this system allows no other name.
    """
    name = socket.gethostname()
    address = _resolve(name)
    hint = f"add the line `127.0.1.1 {name}` to /etc/hosts; or the emulator: frog slurm up --emulator"
    if address is None:
        raise LaunchError(f"this machine's name, {name}, does not resolve, so Slurm cannot listen", hint)
    if address.startswith("127."):
        return name, address
    code = "import sys; from frog.cluster.slurm.processes import go_by_name; go_by_name(sys.argv[1])"
    tried = subprocess.run([sys.executable, "-P", "-c", code, "localhost"], capture_output=True, text=True, timeout=60)
    if tried.returncode != 0:
        raise LaunchError(
            f"this machine's name, {name}, resolves to {address}, and this system does not let a process use another "
            "name: Slurm's daemons would not listen only on the loopback interface",
            hint,
        )
    return "localhost", _resolve("localhost") or "127.0.0.1"


def own_name() -> str:
    """Return the name of the current user. Raises LaunchError if there is none: Slurm identifies users by name."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise LaunchError(
            f"user {uid} has no name on this machine, but Slurm identifies users by name",
            "add a line for it to /etc/passwd; or the emulator: frog slurm up --emulator",
        ) from None


def _resolve(name: str) -> str | None:
    """Return the IPv4 address of a host's name, or None."""
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])
    except OSError:
        return None
