"""The files of a program that accompany it: the script, the modules of its folder that it imports, and named files."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.units import format_bytes

LARGEST_NAMED = 128 << 10
"""Largest size of a file that is sent because the command names it; a larger one is data."""


@dataclass(frozen=True)
class ProgramFiles:
    """The files to send, as paths relative to the working folder, and named files that are not sent."""

    sent: tuple[str, ...]
    data: tuple[str, ...] = ()
    """Binary or large files that the command names."""


def find_program_files(words: Sequence[str], script: str | None, include: Sequence[str], folder: Path) -> ProgramFiles:
    """Return the files that a command needs from `folder`.

    words: the command after Python. script: its script, or None for `-m MODULE` or a command on PATH.
    include: patterns of further files and folders.

    Raises:  UsageError if a file lies outside of the folder, is missing, or cannot be parsed.
    """
    found: set[Path] = set()
    for start in _starts(words, script, folder):
        found |= _with_imports(start, folder if script is None else start.parent)
    for pattern in include:
        found |= _matching(pattern, folder)
    named = {path for word in words for path in _named(word, folder)} - found
    data = {path for path in named if path.stat().st_size > LARGEST_NAMED or not is_text(path)}
    inside = {_inside(path, folder) for path in found | named - data}
    return ProgramFiles(tuple(sorted(inside)), tuple(sorted(_inside(path, folder) for path in data)))


def imported_packages(files: Sequence[Path]) -> set[str]:
    """Return the top-level names that files import and that none of them defines, skipping files with errors."""
    found: set[str] = set()
    for path in files:
        with contextlib.suppress(UsageError):
            found |= {module[0] for module in _imports(path, path.parent) if module}
    return found - {path.stem for path in files} - {part for path in files for part in path.parts[:-1]}


def is_text(path: Path) -> bool:
    """True if a file is text in UTF-8."""
    try:
        return "\0" not in path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def largest(files: Iterable[str], folder: Path) -> str:
    """Return a list of the largest files with their sizes, for an error."""
    sizes = sorted(((folder / name).stat().st_size, name) for name in files)[-3:]
    return ", ".join(f"{name} ({format_bytes(size)})" for size, name in reversed(sizes))


def _starts(words: Sequence[str], script: str | None, folder: Path) -> list[Path]:
    """Return the files with which the program starts: its script, or the module's files if they are in the folder."""
    if script is not None:
        return [folder / script]
    if len(words) < 2 or words[0] != "-m":
        return []
    module = words[1].split(".")
    return [*_files_of(module, folder), *_files_of([*module, "__main__"], folder)]


def _with_imports(start: Path, root: Path) -> set[Path]:
    """Return a file and, if it is Python, the files below `root` that it imports, directly or not."""
    found, waiting = {start}, [start]
    while waiting:
        path = waiting.pop()
        if path.suffix != ".py":
            continue
        new = {imported for module in _imports(path, root) for imported in _files_of(module, root)} - found
        found |= new
        waiting += sorted(new)
    return found


def _imports(path: Path, root: Path) -> Iterator[list[str]]:
    """Yield the modules that a file's import statements name, wherever they are, as parts of dotted names."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path}: not valid Python: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _package_of(path, root, node.level) + (node.module.split(".") if node.module else [])
            yield from ([*base, name.name] for name in node.names)


def _package_of(path: Path, root: Path, level: int) -> list[str]:
    """Return the package from which a relative import of `level` dots starts; nothing for an absolute one."""
    if level == 0:
        return []
    parts = path.parent.relative_to(root).parts
    return list(parts[: len(parts) - level + 1])


def _files_of(module: Sequence[str], root: Path) -> Iterator[Path]:
    """Yield the files that importing a module executes: its packages' `__init__.py` and its own."""
    for length in range(1, len(module) + 1):
        place = root.joinpath(*module[:length])
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())


def _named(word: str, folder: Path) -> Iterator[Path]:
    """Yield the file that an argument names: `configs/a.yaml` or `--config=configs/a.yaml`."""
    for text in {word, word.partition("=")[2]}:
        path = folder / text
        if text and not os.path.isabs(text) and ".." not in path.parts and path.is_file():
            yield path


def _matching(pattern: str, folder: Path) -> set[Path]:
    """Return the files that a pattern of --include matches, and those below a folder that it matches."""
    if os.path.isabs(pattern) or ".." in Path(pattern).parts:
        raise UsageError(f"--include {pattern}: must be below this folder", "submit from a folder that contains it")
    matches = [folder / name for name in glob(pattern, root_dir=folder, recursive=True)]
    files = {path for match in matches for path in (match, *match.rglob("*")) if path.is_file()}
    if not files:
        raise UsageError(f"--include {pattern}: no such file")
    return {path for path in files if "__pycache__" not in path.parts}


def _inside(path: Path, folder: Path) -> str:
    """Return a path relative to the folder."""
    relative = os.path.relpath(path, folder)
    if relative.startswith(".."):
        raise UsageError(
            f"{relative}: is outside of this folder, and only files below it are sent",
            "submit from a folder that contains all of the program",
        )
    return relative
