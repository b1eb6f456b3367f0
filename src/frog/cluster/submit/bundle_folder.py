"""A bundle's folder: bundle.json, its checksums in SHA256SUMS, and the staging folder that becomes it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from frog.cluster.submit.slurm_job import JOBS
from frog.core.errors import UsageError
from frog.core.files import sha256_file, sync_folder, write_atomic
from frog.core.processes import is_alive
from frog.core.schema import Name, Typed, read_bounded

BUNDLE_JSON = "bundle.json"
RUNS = JOBS.parent
SUMS = "SHA256SUMS"
_MADE_IN_USE = (".venv", "runs", "logs", "__pycache__")
"""Files that appear in a bundle when it is used."""


class BundleRequest(Typed, frozen=True):
    """Options of the bundle's job files, unless `frog submit` sets others."""

    nodes: Annotated[int, Meta(ge=1, le=10**6)]
    ranks_per_node: Annotated[int, Meta(ge=1, le=10**6)] | None
    time: Name | None
    account: Name | None
    partition: Name | None
    qos: Name | None


class BundleFacts(Typed, frozen=True):
    """The content of bundle.json."""

    KIND: ClassVar[str] = "a bundle"
    FORMAT: ClassVar[int | None] = 1

    frog: Name
    """Version of the Frog that made it."""
    run: Name
    run_file: Name
    settings: list[str]
    """KEY=VALUE for --set."""
    data: Name
    profile: Name
    request: BundleRequest
    wheels: bool
    """True if the bundle has wheels, which fit its platform and Python."""
    platform: Name | None
    python: Name | None


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
    problems, named = [], set()
    for number, line in enumerate(lines, 1):
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if match is None:
            problems.append(f"{SUMS}, line {number}: not a hash and a name")
            continue
        if match[2] in named:
            problems.append(f"{SUMS}, line {number}: {match[2]} is listed twice")
            continue
        named.add(match[2])
        problems += _check_file(folder, match[2], match[1])
    return problems + [f"{name}: not in {SUMS}" for name in sorted(_files(folder) - named)]


def _check_file(folder: Path, name: str, digest: str) -> list[str]:
    if name.startswith("/") or ".." in name.split("/"):
        return [f"{name}: outside the bundle"]
    try:
        actual = sha256_file(folder / name)
    except FileNotFoundError:
        return [f"{name}: missing"]
    except OSError as error:
        return [f"{name}: cannot be read: {error.strerror}"]
    return [] if actual == digest else [f"{name}: altered: sha256 {actual[:16]}..., the list says {digest[:16]}..."]


def _files(folder: Path) -> set[str]:
    """Return the names of all files, except those that appear when the bundle is used."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return {path.as_posix() for path in paths if path.parts[0] not in _MADE_IN_USE and path.name != SUMS}


@contextmanager
def staged(target: Path, *, force: bool) -> Iterator[Path]:
    """A staging folder to fill: renamed to `target` when the block ends, removed if it raises.

    With `force` it replaces an existing bundle and keeps that bundle's runs.
    """
    target = Path(os.path.abspath(target))
    _clear_leftovers(target)
    if target.exists() and not (force and (target / SUMS).is_file()) and not _is_empty(target):
        hint = "--force replaces it and keeps its runs" if (target / SUMS).is_file() else "name another folder"
        raise UsageError(f"{target} already exists", hint)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging, old = (target.with_name(f".{target.name}.{what}-{os.getpid()}") for what in ("staging", "old"))
    staging.mkdir()
    try:
        yield staging
        if target.exists():
            os.rename(target, old)
        os.rename(staging, target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        _finish_replacement(old, target)


def _finish_replacement(old: Path, target: Path) -> None:
    """Finish an interrupted replacement: put `old` back, or move its runs to `target` and remove it."""
    if not old.exists():
        return
    if not target.exists():
        os.rename(old, target)
        return
    if _has_runs(old):
        if _has_runs(target):
            raise UsageError(
                f"{target} replaced {old}, and both have runs", f"move {old / RUNS} elsewhere, and remove {old}"
            )
        shutil.rmtree(target / RUNS, ignore_errors=True)
        os.rename(old / RUNS, target / RUNS)
        (target / JOBS).mkdir(exist_ok=True)
    shutil.rmtree(old, ignore_errors=True)


def _has_runs(folder: Path) -> bool:
    """True if the bundle was used: it has more than the folder for jobs."""
    return any(path != folder / JOBS for path in (folder / RUNS).rglob("*"))


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _clear_leftovers(target: Path) -> None:
    """Remove the remains of a killed `frog bundle`."""
    for entry in sorted(target.parent.glob(f".{target.name}.*-*")):
        match = re.fullmatch(rf"\.{re.escape(target.name)}\.(staging|old)-(\d+)", entry.name)
        if match is None or is_alive(int(match[2])):
            continue
        if match[1] == "old":
            _finish_replacement(entry, target)
        else:
            with contextlib.suppress(OSError):
                shutil.rmtree(entry)
