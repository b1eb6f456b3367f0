"""A copy of the material in which cases run: finds a case's changes and restores the original state."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

_About = tuple[int, int, int]
"""Kind and permissions, size, and time of the last change."""


class Sandbox:
    """A folder that is inspected before and after each case."""

    def __init__(self, material: Path, folder: Path) -> None:
        self.material, self.folder = material, folder
        shutil.copytree(material, folder, symlinks=True)
        self._good = self.look()
        self._files: dict[tuple[str, ...], list[str]] = {}

    def look(self) -> dict[str, _About]:
        """Return all files, by path relative to the folder."""
        found: dict[str, _About] = {}
        _look_into(str(self.folder), "", found)
        return found

    def files(self, patterns: tuple[str, ...]) -> list[str]:
        """Return the files of the material that match the patterns."""
        if patterns not in self._files:
            paths = (path for pattern in patterns for path in self.material.glob(pattern) if path.is_file())
            self._files[patterns] = sorted(str(path.relative_to(self.material)) for path in paths)
        return self._files[patterns]

    def look_after(self, spoiled: str) -> dict[str, _About]:
        """Return the result of `look` if only one file changed, which may be missing."""
        found = {name: about for name, about in self._good.items() if name != spoiled}
        try:
            found[spoiled] = _about(os.lstat(self.folder / spoiled))
        except FileNotFoundError:
            pass
        except PermissionError:  # unchanged, in a folder without permissions
            return dict(self._good)
        return found

    def original(self, name: str) -> bytes:
        """Return a file's bytes before any damage; empty if the file did not exist."""
        path = self.material / name
        return path.read_bytes() if path.is_file() else b""

    def open_folders(self) -> None:
        """Restore the permissions of folders, outer folders first."""
        self.folder.chmod(0o755)
        for name, (mode, _, _) in sorted(self._good.items()):
            path = self.folder / name
            if stat.S_ISDIR(mode) and path.is_dir() and not path.is_symlink():
                path.chmod(stat.S_IMODE(mode))

    def restore(self, now: dict[str, _About]) -> None:
        """Restore the original state; `now` is the current one."""
        for name in sorted(now.keys() - self._good.keys(), reverse=True):
            self._remove(name)
        for name, about in sorted(self._good.items()):
            found = now.get(name)
            if found == about:
                continue
            if found is not None and found[0] != about[0]:
                self._remove(name)
            source = self.material / name
            if source.is_dir() and not source.is_symlink():
                (self.folder / name).mkdir(exist_ok=True)
            else:
                self._remove(name)
                shutil.copy2(source, self.folder / name, follow_symlinks=False)

    def _remove(self, name: str) -> None:
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def strays(self) -> list[str]:
        """Remove and return files next to the sandbox; there should be none."""
        found = [path for path in self.folder.parent.iterdir() if path != self.folder]
        for path in found:
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return [str(path) for path in found]


def _look_into(folder: str, below: str, found: dict[str, _About]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = below + entry.name
            found[name] = _about(entry.stat(follow_symlinks=False))
            if entry.is_dir(follow_symlinks=False):
                _look_into(entry.path, f"{name}/", found)


def _about(found: os.stat_result) -> _About:
    if stat.S_ISDIR(found.st_mode):
        return found.st_mode, 0, 0
    return found.st_mode, found.st_size, found.st_mtime_ns
