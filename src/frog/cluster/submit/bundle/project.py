"""The files of a program's folder that a bundle takes along."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from frog.core.env import child_env
from frog.core.errors import UsageError
from frog.core.units import format_bytes

LARGEST_FILE, LARGEST_FOLDER = 100 << 20, 2 << 30
_SKIPPED = ("__pycache__", "node_modules", "runs", "wandb", "*.egg-info")
"""Folders that hold what programs and tools left, for a project without git."""
_GIT_TIMEOUT_S = 60


def project_files(folder: Path, needed: Iterable[str], exclude: Sequence[str], target: Path) -> list[str]:
    """Return the files below `folder` to take: those that git does not ignore, and the needed ones.

    exclude: patterns of files and folders to leave out. target: the bundle, which may lie in the folder.

    Raises:  UsageError if a link leads out of the folder, or if a file or all files together are too large.
    """
    listed = _git_files(folder)
    names = {*(_walk(folder) if listed is None else listed), *needed}
    own = Path(os.path.abspath(target))
    kept = sorted(
        name
        for name in names
        if not any(_matches(name, pattern) for pattern in exclude) and not (folder.resolve() / name).is_relative_to(own)
    )
    for name in kept:
        _check_inside(folder, name)
    _check_sizes(folder, kept)
    return kept


def _git_files(folder: Path) -> list[str] | None:
    """Return the files that git knows or does not ignore; None if the folder is not in a repository."""
    git = shutil.which("git")
    if git is None:
        return None
    words = [git, "-C", str(folder), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(words, env=child_env(), capture_output=True, timeout=_GIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return [file for name in names for file in _below(folder, name)]


def _below(folder: Path, name: str) -> Iterator[str]:
    """Yield a file, or the files of a submodule; nothing for a file that was deleted."""
    path = folder / name
    if path.is_file() or path.is_symlink():
        yield name
    elif path.is_dir():
        yield from (f"{name}/{inner}" for inner in _walk(path))


def _walk(folder: Path) -> Iterator[str]:
    """Yield the files of a folder without hidden ones, environments and what programs left."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_skipped(Path(place) / name)]
        for name in files:
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), folder)


def _is_skipped(path: Path) -> bool:
    name = path.name
    skipped = name.startswith(".") or any(fnmatch.fnmatch(name, pattern) for pattern in _SKIPPED)
    return skipped or (path / "pyvenv.cfg").exists()


def _matches(name: str, pattern: str) -> bool:
    """True if a pattern matches a file's path, its name, or a folder above it."""
    parts = name.split("/")
    tops = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatch.fnmatch(text, pattern.rstrip("/")) for text in (*tops, *parts))


def _check_inside(folder: Path, name: str) -> None:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{name}: a link to {os.path.realpath(path)}, which is outside of this folder",
            f"copy the file here, or leave it out: --exclude {name}",
        )
    if not name.isprintable():
        raise UsageError(f"{name!r}: a file's name must be one line of printable characters", "rename the file")
    if not path.is_file():
        raise UsageError(f"{name}: not a file that can be copied", f"leave it out: --exclude {name}")


def _check_sizes(folder: Path, names: Sequence[str]) -> None:
    sizes = sorted(((folder / name).stat().st_size, name) for name in names)
    if not sizes:
        raise UsageError("this folder has no files to take along", "run it in the program's folder")
    size, name = sizes[-1]
    hint = f"leave it out (--exclude {name}), and copy it to the cluster yourself"
    if size > LARGEST_FILE:
        most = format_bytes(LARGEST_FILE)
        raise UsageError(f"{name}: {format_bytes(size)}, but a bundle takes files of at most {most}", hint)
    total = sum(size for size, _ in sizes)
    if total > LARGEST_FOLDER:
        largest = ", ".join(f"{name} ({format_bytes(size)})" for size, name in sizes[:-4:-1])
        raise UsageError(
            f"this folder has {format_bytes(total)}, but a bundle takes at most {format_bytes(LARGEST_FOLDER)}; "
            f"largest: {largest}",
            "leave out what is data: --exclude 'data/*'",
        )
