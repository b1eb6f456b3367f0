"""The learner's own folder: exercises copied from the course, and kept up with it; work is never overwritten."""

from __future__ import annotations

import getpass
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from frog.core.errors import UsageError
from frog.core.files import write_atomic
from frog.core.schema import read_bounded
from frog.core.units import time_text
from frog.learn.grader.exercise import LABS, Exercise, find_exercises, find_pages
from frog.learn.naming import checked_name
from frog.learn.progress import (
    Progress,
    begin_progress,
    find_folder,
    is_folder,
    read_progress,
    update_progress,
)

MOST_BYTES = 1 << 20
"""Of one file of a learner's."""

_README = """\
# My course in distributed training

`frog learn` says where you stand and what to do next; the exercises lie under `exercises/`, in the order in which they
are taken, what there is to know about each lab in `docs/labs/`, and more about some things in `docs/`. Read an
exercise's README.md, edit the files next to it, and let Frog check them:

    frog learn watch       checks again whenever you save
    frog learn check       checks once
    frog learn hint        one hint more, of three
    frog learn list        all exercises
    frog learn progress    what you have done, and how good your predictions were

All that Frog knows of you is in `progress.json`. Files that Frog replaces are kept in `backups/`.
"""
_IGNORED = "/runs/\n/data/\n/chaos/\n/logs\n.progress.lock\n.progress.json.*.tmp\nprogress.html\n__pycache__/\n"


@dataclass(frozen=True)
class LearnerFolder:
    """Where a learner works on the course."""

    path: Path
    labs: Path = LABS

    def place(self, exercise: Exercise) -> Path:
        return self.path / "exercises" / exercise.id

    def exercises(self) -> list[Exercise]:
        return find_exercises(self.labs)

    def progress(self) -> Progress:
        return read_progress(self.path)

    def shown(self, path: Path) -> str:
        """A path below the folder, as messages write it."""
        return path.relative_to(self.path).as_posix()

    def files(self, exercise: Exercise) -> dict[str, bytes]:
        """What the learner has written.

        Raises:  UsageError if a file is missing, too large or unreadable.
        """
        return dict(self._read(exercise))

    def _read(self, exercise: Exercise) -> Iterator[tuple[str, bytes]]:
        hint = f"`frog learn reset {exercise.number}` restores the original"
        for name in exercise.file_names:
            path = self.place(exercise) / name
            try:
                yield name, read_bounded(path, UsageError, hint, MOST_BYTES)
            except FileNotFoundError:
                raise UsageError(f"{path}: is missing", hint) from None

    def reset(self, exercise: Exercise) -> Path | None:
        """Bring an exercise's files back as shipped; the folder where what they replace is kept, if they do."""
        kept = self._back_up(exercise)
        self._ship(exercise)
        return kept

    def _back_up(self, exercise: Exercise) -> Path | None:
        """Copy the files that differ from what is shipped."""
        place, shipped = self.place(exercise), shipped_files(exercise)
        changed = [n for n, data in shipped.items() if (place / n).exists() and _bytes(place / n) != data]
        if not changed:
            return None
        backup = self._new_backup(exercise)
        for name in changed:
            shutil.copy2(place / name, backup / name)
        return backup

    def _new_backup(self, exercise: Exercise) -> Path:
        stamp = time_text().partition(".")[0].replace(":", "").replace(" ", "T")
        parent, count = self.path / "backups" / exercise.id, 1
        while True:
            backup = parent / (stamp if count == 1 else f"{stamp}.{count}")
            with suppress(FileExistsError):
                backup.mkdir(parents=True)
                return backup
            count += 1

    def _ship(self, exercise: Exercise) -> None:
        for name, data in shipped_files(exercise).items():
            write_atomic(self.place(exercise) / name, data)

    def keep_up(self) -> list[str]:
        """Bring in what the course has that the folder does not have yet. Says what was done, a line each.

        A file that the learner has not touched since it was shipped is replaced by a newer one; others are left alone.
        """
        said: list[str] = []
        if self._is_current(self.progress()):
            return said

        def change(progress: Progress) -> Progress:
            for exercise in self.exercises():
                work = progress.work(exercise.id)
                hint = f" (`frog learn reset {exercise.number}` installs the new one and keeps a copy of yours)"
                said.extend(self._bring_in(self.place(exercise), shipped_files(exercise), work.shipped, hint))
                progress = progress.with_work(exercise.id, replace(work, shipped=_digests(shipped_files(exercise))))
            said.extend(self._bring_in(self.path / "docs", self._pages(), progress.pages, ""))
            return replace(progress, pages=_digests(self._pages()))

        update_progress(self.path, change)
        return said

    def _is_current(self, progress: Progress) -> bool:
        exercises = ((progress.work(one.id).shipped, shipped_files(one)) for one in self.exercises())
        return all(known == _digests(files) for known, files in (*exercises, (progress.pages, self._pages())))

    def _pages(self) -> dict[str, bytes]:
        """What there is to read: a page for each lab, and those that exercises and questions name besides."""
        return {name: page.read_bytes() for name, page in find_pages(self.labs).items()}

    def _bring_in(self, place: Path, files: dict[str, bytes], before: dict[str, str], hint: str) -> Iterator[str]:
        """Write the files that are newer than they were, and say so; those that the learner has changed stay."""
        for name, data in files.items():
            path = place / name
            found = _digest(_bytes(path)) if path.exists() else None
            if _digest(data) in (found, before.get(name)):
                continue
            if found in (None, before.get(name)):
                write_atomic(path, data)
                if name in before:
                    yield f"{self.shown(path)}: updated to the course's newer version"
            else:
                yield f"{self.shown(path)}: the course has a newer version; yours is unchanged{hint}"


def shipped_files(exercise: Exercise) -> dict[str, bytes]:
    """What a learner's folder gets of an exercise."""
    return {"README.md": exercise.readme.encode(), **exercise.stub()}


def _digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: _digest(data) for name, data in files.items()}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bytes(path: Path) -> bytes:
    return read_bounded(path, UsageError, "move it away")


def open_folder(start: Path, labs: Path = LABS) -> LearnerFolder | None:
    """The learner's folder around `start`, if there is one."""
    found = find_folder(start.absolute())
    return LearnerFolder(found, labs) if found else None


def check_new(path: Path) -> None:
    """Raise UsageError if the folder is a course's already, or holds something else."""
    if is_folder(path.absolute()):
        raise UsageError(f"{path}: is already a course folder", f"cd {path} && frog learn")
    if not is_empty(path.absolute()):
        raise UsageError(f"{path}: is not empty", "frog learn init ~/frog-course")


def create_folder(path: Path, labs: Path = LABS, learner: str | None = None) -> LearnerFolder:
    """Make a folder the learner's own: exercises, progress.json, and a git repository where git is there.

    Raises:  UsageError if it holds something else already, or cannot be made.
    """
    check_new(path)
    folder = LearnerFolder(path.absolute(), labs)
    try:
        (folder.path / "exercises").mkdir(parents=True, exist_ok=True)
        begin_progress(
            folder.path, learner or known_name(folder.path)
        )  # from here on `frog learn` goes on with what is missing
        write_atomic(folder.path / "README.md", _README)
        write_atomic(folder.path / ".gitignore", _IGNORED, replace=False)
        folder.keep_up()
    except OSError as problem:
        raise UsageError(f"{path}: cannot create: {problem.strerror}", "name another folder") from None
    _commit(folder.path)
    return folder


def is_empty(path: Path) -> bool:
    """Whether there is nothing in a folder, or no folder; hidden files (.git, .venv) do not count."""
    if not path.exists():
        return True
    if not path.is_dir():
        raise UsageError(f"{path}: is not a folder", "name another")
    return all(entry.name.startswith(".") for entry in path.iterdir())


def known_name(path: Path) -> str:
    """The user's name, as git knows it in this folder, or in the one that will hold it; else the account's."""
    place = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
    with suppress(OSError, KeyError, UsageError):
        return checked_name(_git(place, "config", "user.name") or getpass.getuser())
    return "unknown"


def _commit(folder: Path) -> None:
    """A repository with what was shipped as its first commit. Without git, or in a repository already, nothing."""
    if (folder / ".git").exists() or _git(folder, "init", "--quiet") is None:
        return
    who = ("-c", "user.name=Frog", "-c", "user.email=frog@localhost", "-c", "commit.gpgsign=false")
    _git(folder, "add", "--all")
    _git(folder, *who, "commit", "--quiet", "--no-verify", "-m", "The original course")


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None if it fails, or is not there."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
