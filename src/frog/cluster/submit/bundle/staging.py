"""Writes a bundle into a staging folder next to its target, and renames it when it is complete."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frog.cluster.submit.bundle.sums import SUMS
from frog.cluster.submit.slurm_job import JOBS
from frog.core.errors import UsageError
from frog.core.files import sync_folder
from frog.core.processes import is_alive

RUNS = JOBS.parent


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
        _settle(old, target)


def _settle(old: Path, target: Path) -> None:
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
            _settle(entry, target)
        else:
            with contextlib.suppress(OSError):
                shutil.rmtree(entry)
