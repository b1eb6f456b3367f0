"""Start a command in namespaces: `python -m frog.cluster.kubernetes.container start SPEC.json`, or `join PID COMMAND`.

`start` creates a pod: the command is process 1 of its PID namespace, sees the files that the spec describes, and has no
rights beyond those of the user who started the cluster. `join` runs a command in an existing pod, such as a probe. Both
end with the exit code of the command.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from frog.cluster.kubernetes.rootfs import Mount, build_root
from frog.core import namespaces
from frog.core.errors import LaunchError, shell_code, signal_code
from frog.core.schema import read_typed

_NOT_STARTED = 128
"""Exit codes of a container runtime for a command that it cannot start."""


@dataclass(frozen=True)
class PodSpec:
    """Description of one pod, with all names resolved."""

    host: str
    uid: int
    gid: int
    root: str
    """An empty folder on which the pod's files are mounted; other processes do not see these mounts."""
    folder: str
    command: list[str]
    env: dict[str, str]
    mounts: list[Mount]
    pid_file: str
    """File that receives the pid of the command."""
    writable: bool = False
    """True if the pod may write to its root, in memory."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> PodSpec:
        """Read a file written by `write`. Raises LaunchError if the file is invalid."""
        return read_typed(path, cls, error=LaunchError)


def start(spec: PodSpec) -> int:
    """Create the pod, wait for its end, return the exit code of its command."""
    namespaces.die_with_parent()
    namespaces.unshare_as(namespaces.HOST_NAME | namespaces.SHARED_MEMORY | namespaces.PROCESSES, spec.uid, spec.gid)

    def become() -> NoReturn:
        namespaces.die_with_parent()
        namespaces.separate_mounts()
        namespaces.change_root(build_root(spec.root, spec.mounts, writable=spec.writable, uid=spec.uid))
        socket.sethostname(spec.host)
        if spec.writable:  # as container runtimes do
            os.makedirs(spec.folder, exist_ok=True)
        os.chdir(spec.folder)
        _execute(spec.command, spec.env)

    return _in_child(become, Path(spec.pid_file))


def join(pid: int, command: Sequence[str], env: dict[str, str], folder: str) -> int:
    """Run a command in a pod; return its exit code."""
    namespaces.die_with_parent()
    namespaces.join(pid)

    def become() -> NoReturn:
        namespaces.die_with_parent()
        os.chdir(folder)
        _execute(command, env)

    return _in_child(become, None)


def _execute(command: Sequence[str], env: dict[str, str]) -> NoReturn:
    namespaces.give_up_privileges()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # Python ignores or handles these
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), env)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_STARTED)


def _in_child(become: Callable[[], NoReturn], pid_file: Path | None) -> int:
    """Fork; the child becomes the command. Pass SIGTERM on to it; return its exit code, 128 + n after signal n."""
    early = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until a handler exists that forwards it
    child = os.fork()
    if child == 0:
        try:
            signal.signal(
                signal.SIGTERM, lambda number, frame: os._exit(signal_code(number))
            )  # until the command exists
            signal.pthread_sigmask(signal.SIG_SETMASK, early)
            become()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(_NOT_STARTED)
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_SETMASK, early)
    if pid_file is not None:
        pid_file.write_text(str(child))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return shell_code(code)


def main(arguments: Sequence[str]) -> int:
    """Run `start SPEC.json` or `join PID SPEC.json COMMAND...`."""
    is_start = arguments[0] == "start"
    try:
        spec = PodSpec.read(Path(arguments[1 if is_start else 2]))
    except (LaunchError, FileNotFoundError) as error:
        print(error, file=sys.stderr, flush=True)
        return _NOT_STARTED
    return start(spec) if is_start else join(int(arguments[1]), arguments[3:], spec.env, spec.folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
