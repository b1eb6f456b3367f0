"""The changed files of the working tree, as git sees them, and `.ci/verified`."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

VERIFIED = Path(".ci/verified")


class UnknownBaseError(Exception):
    """The commit to compare with is not in the repository."""


def verified_commit(root: Path) -> str:
    """Return the commit on which the whole suite last passed."""
    path = root / VERIFIED
    if not path.exists():
        raise UnknownBaseError(f"{VERIFIED} does not exist")
    return str(tomllib.loads(path.read_text())["commit"])


def changed_files(root: Path, base: str) -> list[str]:
    """Return the paths that differ between a commit and the working tree, also deleted and new ones.

    Raises:  UnknownBaseError if the repository lacks the commit, as a shallow clone may.
    """
    if _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}") is None:
        raise UnknownBaseError(f"the repository has no commit {base}")
    changed = _git(root, "diff", "--name-only", "--no-renames", "-z", base, "--") or ""
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z") or ""
    return sorted({*changed.split("\0"), *new.split("\0")} - {""})


def current_commit(root: Path) -> str:
    """Return the commit of the working tree."""
    return (_git(root, "rev-parse", "HEAD") or "").strip()


def is_clean(root: Path) -> bool:
    """True if the working tree has no changes."""
    return _git(root, "status", "--porcelain") == ""


def _git(root: Path, *words: str) -> str | None:
    """Return the output of a command of git, or None if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None
