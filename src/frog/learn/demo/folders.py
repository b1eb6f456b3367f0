"""Demo folders: create a new numbered one, or find the newest one to continue."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from frog.core.errors import UsageError

_NEEDED = ("train.py", "scripts", "config")
"""Parts of the repository that a demo shows; copied into its folder."""

_MARK = ".frog-demo"
"""A file of this name marks a demo's folder."""


def new_folder(name: str, chosen: Path | None) -> Path:
    """Create a demo's folder: the chosen one, else demo-a, or demo-a-2 if demo-a exists, and so on."""
    missing = [needed for needed in _NEEDED if not Path(needed).exists()]
    if missing:
        raise UsageError(
            f"a demo shows train.py, scripts/ and config/, but the current directory does not contain {missing[0]}",
            "cd to a clone of the repository",
        )
    folder = chosen or _next(name)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{folder}: already exists", "choose another --out, or continue in it with --from N") from None
    except OSError as problem:
        raise UsageError(f"{folder}: cannot be created: {problem.strerror}", "choose another --out") from None
    for needed in _NEEDED:
        copy = shutil.copytree if Path(needed).is_dir() else shutil.copyfile
        copy(needed, folder / needed)
    (folder / _MARK).touch()
    return folder


def old_folder(name: str, chosen: Path | None) -> Path:
    """Find the folder of an earlier demo: the chosen one, else the newest."""
    if chosen is not None:
        if not chosen.is_dir():
            raise UsageError(f"{chosen}: no such folder", "start the demo at step 1, or give its folder: --out DIR")
        if not _is_demo(chosen):  # a step removes runs by name; in another folder, those might not be the demo's runs
            raise UsageError(f"{chosen}: not a demo folder", "start the demo at step 1")
        return chosen
    played = [folder for folder in _numbered(name).values() if _is_demo(folder)]
    if not played:
        raise UsageError(f"found no demo-{name} here to continue", "start at step 1, or give its folder: --out DIR")
    return played[-1]


def _next(name: str) -> Path:
    """Return the next free number's folder; the newest folder always has the highest number."""
    last = max(_numbered(name), default=0)
    return Path(f"demo-{name}-{last + 1}" if last else f"demo-{name}")


def _numbered(name: str) -> dict[int, Path]:
    """Return the existing demo-a (number 1), demo-a-2, ... in numerical order."""
    matches = ((re.fullmatch(rf"demo-{name}(?:-([1-9]\d{{0,8}}))?", path.name), path) for path in Path().iterdir())
    return dict(sorted((int(match[1] or 1), path) for match, path in matches if match))


def _is_demo(folder: Path) -> bool:
    return (folder / _MARK).is_file()
