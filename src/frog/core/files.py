"""Files that are complete or absent: atomic writes, locks, folders that replace others, and scratch folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from frog.core.errors import UsageError

_BLOCK_BYTES = 1 << 20
_MOST_SOCKET_BYTES = 100
"""Most bytes of a socket's path; Linux accepts 107 and macOS 103."""


def write_atomic(path: Path, data: bytes | str, *, replace: bool = True, private: bool = False) -> None:
    """Write `data` so that `path` never contains a part of it, even if the machine stops midway.

    With replace=False, an existing file of another process stays. With private=True, only the owner can read the file.
    A device or pipe, such as /dev/stdout, is written to directly.
    """
    mode = 0o600 if private else 0o666
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    content = data.encode() if isinstance(data, str) else data
    if _is_device(path):
        _write_into(path, content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _opened(path.parent) as folder:  # a process that waits for the file may rename its folder immediately
        try:
            with open(staging, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if replace or not _link(staging, path):
                os.replace(staging, path)
        finally:
            staging.unlink(missing_ok=True)
        os.fsync(folder)


def _is_device(path: Path) -> bool:
    """True for a device or a pipe, which a rename would replace; False for a plain file, a folder or a missing path."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _write_into(path: Path, content: bytes) -> None:
    """Write to a device or pipe. Raises OSError, also if a pipe has no reader: this never waits for one."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        os.set_blocking(file.fileno(), True)
        file.write(content)


def _link(staging: Path, path: Path) -> bool:
    """Link a file to its name unless the name exists; False on a file system without links, if the name is free."""
    try:
        os.link(staging, path)
    except OSError:
        return path.exists()
    return True


def open_plain(path: Path) -> BinaryIO:
    """Open a file to read its bytes, without blocking on a named pipe or device, unless the shell passes it (`<(...)`).

    Raises:  OSError, also if the path is not a file.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "the name contains a NUL", str(path))
    descriptor = os.open(path, os.O_RDONLY | (0 if _is_passed(path) else os.O_NONBLOCK))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not _is_passed(path):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"found {_kind_of(mode)}, expected a file", str(path))
    return os.fdopen(descriptor, "rb")


def open_lock(path: Path, mode: int = 0o666) -> int:
    """Open a file to lock and write it, and create it if necessary; return its descriptor. Does not follow a link.

    Raises:  OSError, also if the path is not a file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"found {_kind_of(kind)}, expected a file", str(path))
    return descriptor


def _is_passed(path: Path) -> bool:
    return path == Path("/dev/stdin") or path.parent == Path("/dev/fd")


def _kind_of(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "a device")


@contextmanager
def socket_name(path: Path) -> Iterator[str]:
    """Yield a name for the path of a Unix socket, to bind or connect it: the system accepts about a hundred bytes.

    A longer path, as of a TMPDIR on a cluster, is reached through the descriptor of its folder.

    Raises:  UsageError if this system cannot do that.
    """
    if len(os.fsencode(path)) <= _MOST_SOCKET_BYTES:
        yield str(path)
        return
    if not Path("/proc/self/fd").exists():
        raise UsageError(f"{path}: too long for the name of a socket", "export TMPDIR=/tmp")
    with _opened(path.parent) as folder:
        yield f"/proc/self/fd/{folder}/{path.name}"


def write_json(path: Path, value: Any, *, replace: bool = True) -> None:
    """Write indented JSON atomically; keys keep their order. JSON has no NaN: non-finite numbers become null."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = msgspec.json.format(msgspec.json.encode(value).decode(), indent=2)
    write_atomic(path, text + "\n", replace=replace)


def folders_with(root: Path, name: str) -> list[Path]:
    """Return the sorted folders in `root` that contain a file of this name; none if `root` does not exist.

    Raises:  OSError if `root` cannot be read.
    """
    try:
        entries = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [root / entry for entry in entries if os.path.exists(root / entry / name)]


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power failure."""
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_in_place(staging: Path, target: Path) -> None:
    """Rename a complete folder to `target`, and replace any existing one.

    The old folder is first renamed, so that a crash at any moment leaves the old or the new one complete; `put_back`
    restores the old one if the new one is missing.
    """
    aside = put_aside(target)
    put_back(target)
    if os.path.lexists(target):
        target.rename(aside)
    staging.rename(target)
    sync_folder(target.parent)
    if os.path.lexists(aside):
        remove(aside)


def put_aside(target: Path) -> Path:
    """Return the temporary name of a folder while a new one replaces it."""
    return target.with_name(f".{target.name}.replaced")


def put_back(target: Path) -> None:
    """Clean up after a crash: restore a folder that was not replaced, remove one that was."""
    aside = put_aside(target)
    if not os.path.lexists(aside):
        return
    if os.path.lexists(target):
        remove(aside)
    else:
        aside.rename(target)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """Return the hex SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with open_plain(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def link_folder(link: Path, target: Path) -> bool:
    """Point the symbolic link `link` at `target`; return False if a real file or folder has that name, and keep it."""
    if link.exists() and not link.is_symlink():
        return False
    staging = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    staging.unlink(missing_ok=True)
    staging.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    os.replace(staging, link)
    return True


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a folder for temporary files, and remove it at the end of the block. A lock marks it as in use meanwhile.

    It is created in `parent`, or in the system's folder for temporary files.

    Folders with the same prefix whose owner was killed are removed.
    """
    parent = parent or Path(tempfile.gettempdir())
    remove_abandoned(parent, prefix)
    new = Path(tempfile.mkdtemp(prefix=f"new-{prefix}", dir=parent))
    lock = os.open(new, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = new.rename(new.with_name(new.name.removeprefix("new-")))  # the lock is now in place
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the scratch folders of killed processes: those of this user that no process has locked."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder; first make readable what a pod has made unreadable."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)
