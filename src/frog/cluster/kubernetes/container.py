"""The container of a pod: a command in namespaces, with a file system of its own.

`python -m frog.cluster.kubernetes.container start SPEC.json` creates a pod: the command is process 1 of its PID
namespace, sees the files that the spec describes, and has no rights beyond those of the user who started the cluster.
`join PID SPEC.json COMMAND...` runs a command in an existing pod, such as a probe. Both end with the exit code of the
command.

Frog does not unpack the image; the machine's files replace it. A pod may write to its root unless its manifest makes
that read-only: an overlay keeps what it writes in memory, until the pod ends. Under a read-only root, a volume may be
mounted at a path that does not exist on the machine; Frog then rebuilds its parent folder from mounts, entry by entry.
Neither changes anything on the machine.
"""

from __future__ import annotations

import contextlib
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

from frog.core import namespaces
from frog.core.errors import LaunchError, shell_code, signal_code
from frog.core.namespaces import bind, make_read_only, mount_memory, mount_overlay, mount_points, mount_proc
from frog.core.schema import read_typed

_NOT_STARTED = 128
"""Exit codes of a container runtime for a command that it cannot start."""

_MOST_LINKS = 256
"""Most parts of a path, with those of its links, to follow."""

_OF_THE_SYSTEM = ("/dev", "/sys")
_SMALL_SHM_BYTES = 64 << 20
"""Size of /dev/shm in a container that mounts nothing there."""


@dataclass(frozen=True)
class Mount:
    """A mount at `path` in a pod: a file or folder of this machine, or (None) a file system in memory."""

    path: str
    source: str | None
    read_only: bool = False
    size_bytes: int | None = None


# ---- namespaces ------------------------------------------------------------------------------------------------------


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


# ---- the file system -------------------------------------------------------------------------------------------------


def build_root(root: str, mounts: Sequence[Mount], *, writable: bool, uid: int) -> str:
    """Mount the files of a pod of this user at `root`, an empty folder, or below it; return where.

    The calling process must have its own namespaces. If the system has no overlays, the root is read-only except /tmp.
    """
    if not any(mount.path == "/dev/shm" for mount in mounts):
        mounts = [*mounts, Mount("/dev/shm", None, size_bytes=_SMALL_SHM_BYTES)]
    if writable:
        if not any(mount.path == "/tmp" for mount in mounts):
            mounts = [Mount("/tmp", None), *mounts]
        try:
            return _build_writable(root, mounts, uid)
        except OSError as error:
            print(f"the root of this pod is read-only except /tmp: {error}", file=sys.stderr, flush=True)
    _build_read_only(root, mounts)
    return root


def _build_writable(root: str, mounts: Sequence[Mount], uid: int) -> str:
    """Mount the machine's files at a folder below `root`, which this returns, each under a layer in memory.

    Raises:  OSError if the system has no overlays for a user.
    """
    mount_memory(root, None, mode="755")
    new = f"{root}/root"
    os.mkdir(new)
    mount_memory(new, None, mode="755")
    os.chdir(root)  # the layers have relative paths, which need no escapes
    _Layers(new, uid).show("")
    for mount in sorted(mounts, key=lambda mount: mount.path.count("/")):
        place = _resolved(new, mount.path)
        _make_target(place, mount)
        if mount.source is None:
            mount_memory(place, mount.size_bytes)
        else:
            bind(mount.source, place, read_only=mount.read_only)
    mount_proc(f"{new}/proc")
    return new


def _make_target(place: str, mount: Mount) -> None:
    """Create the folder or file to mount on, unless it exists."""
    if mount.source is None or os.path.isdir(mount.source):
        os.makedirs(place, exist_ok=True)
    elif not os.path.exists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        Path(place).touch()


class _Layers:
    """Shows the machine's folders at a new root, each under a layer that takes what the pod's user writes.

    A folder with other file systems below it cannot be one layer, because a user may not look beneath them. It becomes
    a folder in memory, with a layer for each of its folders.
    """

    def __init__(self, new: str, uid: int) -> None:
        self._new, self._uid = new, uid
        self._mounted = mount_points()
        self._number = 0

    def show(self, folder: str) -> None:
        """Fill a folder of the new root with the machine's entries."""
        for entry in sorted(os.scandir(folder or "/"), key=lambda entry: entry.name):
            path = f"{folder}/{entry.name}"
            place = f"{self._new}{path}"
            if entry.is_symlink():
                os.symlink(os.readlink(path), place)
            elif not entry.is_dir():
                Path(place).touch()
                with contextlib.suppress(OSError):
                    bind(path, place, read_only=True)
            else:
                os.mkdir(place)
                self._fill(path, place)

    def _fill(self, path: str, place: str) -> None:
        if path == "/proc":
            return
        try:
            if path in _OF_THE_SYSTEM:
                bind(path, place, read_only=True)
            elif any(other.startswith(f"{path}/") for other in self._mounted):
                os.chmod(place, self._mode(path))
                self.show(path)
            else:
                self._overlay(path, place)
        except PermissionError:  # a folder of another user stays empty
            return

    def _overlay(self, path: str, place: str) -> None:
        self._number += 1
        upper, work = f"upper-{self._number}", f"work-{self._number}"
        os.mkdir(upper)
        os.chmod(upper, self._mode(path))
        os.mkdir(work)
        try:
            mount_overlay(place, path, upper, work)
        except OSError:
            if self._number == 1:
                raise
            bind(path, place, read_only=True)  # a file system of a kind that overlays refuse

    def _mode(self, path: str) -> int:
        """Return the permissions of a folder, without writing if the pod's user may not write there."""
        mode = os.stat(path).st_mode & 0o7777
        return mode if self._uid == 0 or os.access(path, os.W_OK) else mode & ~0o222


def _resolved(root: str, path: str) -> str:
    """Return the place of `path` below `root`, where absolute links also stay below `root`."""
    done, left = "", [part for part in path.split("/") if part]
    for _ in range(_MOST_LINKS):
        if not left:
            break
        part = left.pop(0)
        place = os.path.normpath(f"{done}/{part}")
        if os.path.islink(f"{root}{place}"):
            target = os.readlink(f"{root}{place}")
            done = "" if target.startswith("/") else done
            left = [*(part for part in target.split("/") if part), *left]
        else:
            done = "" if place == "/" else place
    return f"{root}{done}"


def _build_read_only(root: str, mounts: Sequence[Mount]) -> None:
    mount_memory(root, None, mode="755")
    _show("", root, {mount.path: mount for mount in mounts})
    make_read_only(root)
    mount_proc(f"{root}/proc")
    for mount in sorted(mounts, key=lambda mount: mount.path.count("/")):
        if mount.source is None:
            mount_memory(f"{root}{mount.path}", mount.size_bytes)
        else:
            if os.path.isdir(mount.source):
                os.makedirs(f"{root}{mount.path}", exist_ok=True)  # in a volume that was mounted before
            bind(mount.source, f"{root}{mount.path}", read_only=mount.read_only)


def _show(folder: str, root: str, mounts: dict[str, Mount]) -> None:
    """Fill `root`/`folder` with the machine's entries and with a mount point for each mount."""
    there = {entry.name for entry in os.scandir(folder or "/")} if os.path.isdir(folder or "/") else set()
    wanted = {path[len(folder) + 1 :].split("/")[0] for path in mounts if path.startswith(f"{folder}/")}
    for name in sorted(there | wanted):
        path = f"{folder}/{name}"
        new = f"{root}{path}"
        inner = [place for place in mounts if place.startswith(f"{path}/")]
        if path in mounts or path == "/proc":
            _make_place(new, mounts.get(path))
        elif inner and not all(_is_real(place) for place in inner):
            os.mkdir(new)
            _show(path, root, mounts)
        elif os.path.islink(path):
            os.symlink(os.readlink(path), new)
        else:
            _make_place(new, Mount(path, path))
            try:
                bind(path, new)
            except OSError:
                if inner:
                    raise


def _make_place(new: str, mount: Mount | None) -> None:
    """Create an empty folder or file to mount on."""
    if mount is not None and mount.source is not None and not os.path.isdir(mount.source):
        Path(new).touch()
    else:
        os.mkdir(new)


def _is_real(path: str) -> bool:
    """True if this path exists on the machine and contains no symbolic link."""
    return os.path.exists(path) and os.path.realpath(path) == path


# ---- the process -----------------------------------------------------------------------------------------------------


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
