"""The file system of a pod on this machine: the machine's own files, read-only, with the pod's volumes mounted.

Frog does not unpack the image; the machine's files replace it. A volume may be mounted at a path that does not exist on
the machine; Frog then rebuilds its parent folder from mounts, entry by entry, and changes nothing on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frog.core.namespaces import bind, make_read_only, mount_memory, mount_proc

_SMALL_SHM_BYTES = 64 << 20
"""Size of /dev/shm in a container that mounts nothing there."""


@dataclass(frozen=True)
class Mount:
    """A mount at `path` in a pod: a file or folder of this machine, or (None) a file system in memory."""

    path: str
    source: str | None
    read_only: bool = False
    size_bytes: int | None = None


def build_root(root: str, mounts: Sequence[Mount]) -> None:
    """Mount a pod's files at `root`, an empty folder. The calling process must have its own namespaces."""
    if not any(mount.path == "/dev/shm" for mount in mounts):
        mounts = [*mounts, Mount("/dev/shm", None, size_bytes=_SMALL_SHM_BYTES)]
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
