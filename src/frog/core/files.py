"""Files that are whole or absent: write to a staging file, flush to disk, rename."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

_BLOCK_BYTES = 1 << 20


def write_atomic(path: Path, data: bytes | str, *, replace: bool = True, private: bool = False) -> None:
    """Write `data` so that `path` never holds a part of it, also if the machine stops midway.

    Unless it may `replace`, a file that another process has put there stays. A `private` one only its owner can read.
    What is a device or a pipe, such as /dev/stdout, is written into.
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
    with _opened(path.parent) as folder:  # who waits for the file may give its folder another name at once
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
    """Whether it is neither a plain file nor a folder, nor absent: a device, a pipe. To take its place would end it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _write_into(path: Path, content: bytes) -> None:
    """Raises OSError, also where a pipe has no reader: it is not waited for."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        os.set_blocking(file.fileno(), True)
        file.write(content)


def _link(staging: Path, path: Path) -> bool:
    """Give a file its name unless another has it; False on a file system without links, if none has it."""
    try:
        os.link(staging, path)
    except OSError:
        return path.exists()
    return True


def open_plain(path: Path) -> BinaryIO:
    """A file's bytes, to be read. A named pipe or a device is not waited for, unless the shell passes it (`<(...)`).

    Raises:  OSError, also for what is no file.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "the name holds a NUL", str(path))
    descriptor = os.open(path, os.O_RDONLY | (0 if _is_passed(path) else os.O_NONBLOCK))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not _is_passed(path):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"found {_kind_of(mode)}, expected a file", str(path))
    return os.fdopen(descriptor, "rb")


def open_lock(path: Path, mode: int = 0o666) -> int:
    """A descriptor of a file to be locked and written, made if there is none. A link is not followed to where it leads.

    Raises:  OSError, also for what is no file.
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


def write_json(path: Path, value: Any, *, replace: bool = True) -> None:
    """`write_atomic` of indented JSON; keys keep their order. JSON has no NaN: what is not finite becomes null."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = msgspec.json.format(msgspec.json.encode(value).decode(), indent=2)
    write_atomic(path, text + "\n", replace=replace)


def folders_with(root: Path, name: str) -> list[Path]:
    """The folders in `root` that hold a file of this name, in order; none where there is no `root`.

    Raises:  OSError if it cannot be looked into.
    """
    try:
        entries = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [root / entry for entry in entries if os.path.exists(root / entry / name)]


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut."""
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_in_place(staging: Path, target: Path) -> None:
    """Give a whole folder its name; whatever had that name makes room for it.

    The old one is put aside first, so that a crash at any moment leaves the old or the new one whole; `put_back` gives
    the old one its name again if the new one has not come.
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
    """How a folder is called while a new one takes its name."""
    return target.with_name(f".{target.name}.replaced")


def put_back(target: Path) -> None:
    """After a crash: what was put aside in vain gets its name back, what was replaced goes."""
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
    """Hex SHA-256 of a file's bytes, read a block at a time."""
    digest = hashlib.sha256()
    with open_plain(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def link_folder(link: Path, target: Path) -> bool:
    """Point the symbolic link `link` at `target`; leave a real file or folder of that name alone and say False."""
    if link.exists() and not link.is_symlink():
        return False
    staging = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    staging.unlink(missing_ok=True)
    staging.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    os.replace(staging, link)
    return True
