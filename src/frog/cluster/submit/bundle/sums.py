"""SHA256SUMS of a bundle, in the format of `sha256sum --check SHA256SUMS`."""

from __future__ import annotations

import re
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.files import sha256_file, write_atomic
from frog.core.schema import read_bounded

SUMS = "SHA256SUMS"
_LATER = (".venv", "runs", "logs", "__pycache__")
"""Files that appear in a bundle when it is used."""


def write_sums(folder: Path) -> int:
    """Write the hash of every file; return the number of files."""
    names = sorted(_files(folder))
    write_atomic(folder / SUMS, "".join(f"{sha256_file(folder / name)}  {name}\n" for name in names))
    return len(names)


def check_sums(folder: Path) -> list[str]:
    """Return missing, altered and unlisted files, if any. Raises UsageError if it is not a bundle."""
    hint = "frog bundle RUN.toml --to DIR creates one"
    try:
        lines = read_bounded(folder / SUMS, UsageError, hint).decode(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        raise UsageError(f"{folder}: not a bundle: {SUMS} is missing", hint) from None
    wrong, named = [], set()
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if match is None:
            wrong.append(f"{SUMS}, line {number}: not a hash and a name")
            continue
        if match[2] in named:
            wrong.append(f"{SUMS}, line {number}: {match[2]} is listed twice")
            continue
        named.add(match[2])
        wrong += _look(folder, match[2], match[1])
    return wrong + [f"{name}: not in {SUMS}" for name in sorted(_files(folder) - named)]


def _look(folder: Path, name: str, digest: str) -> list[str]:
    if name.startswith("/") or ".." in name.split("/"):
        return [f"{name}: outside the bundle"]
    try:
        found = sha256_file(folder / name)
    except FileNotFoundError:
        return [f"{name}: missing"]
    except OSError as error:
        return [f"{name}: cannot be read: {error.strerror}"]
    return [] if found == digest else [f"{name}: altered: sha256 {found[:16]}..., the list says {digest[:16]}..."]


def _files(folder: Path) -> set[str]:
    """Return the names of all files, except those that appear later."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return {path.as_posix() for path in found if path.parts[0] not in _LATER and path.name != SUMS}
