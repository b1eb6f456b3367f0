"""The course folder: a learner's copy of the exercises. It follows course updates and never overwrites work."""

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

from frog.core.config.project import shipped_file
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
"""Size limit of one learner's file."""

_README = """\
# My course in distributed training

`frog learn start` begins with ten minutes on two ranks; `frog learn` shows your progress and the next step. The
exercises are in `exercises/`, in order; each lab has a page in `docs/labs/`, and `docs/` covers some topics in depth.
The pages' commands run here: they use `config/`, `scripts/` and `train.py`. Read an exercise's README.md, edit the
files next to it, and let Frog check them:

    frog learn watch       checks again whenever you save
    frog learn check       checks once
    frog learn hint        shows the next of three hints
    frog learn list        lists all exercises
    frog learn progress    shows your progress and the accuracy of your predictions

Frog stores everything it knows about you in `progress.json`, and keeps each file that it replaces in `backups/`.
"""
_IGNORED = "runs/\n/data/\n/chaos/\n/logs\n.progress.lock\n.progress.json.*.tmp\nprogress.html\n__pycache__/\n"


@dataclass(frozen=True)
class LearnerFolder:
    """A learner's copy of the course."""

    path: Path
    labs: Path = LABS

    def place(self, exercise: Exercise) -> Path:
        return self.path / "exercises" / exercise.id

    def exercises(self) -> list[Exercise]:
        return find_exercises(self.labs)

    def progress(self) -> Progress:
        return read_progress(self.path)

    def shown(self, path: Path) -> str:
        """Return a path in the folder as messages print it."""
        return path.relative_to(self.path).as_posix()

    def files(self, exercise: Exercise) -> dict[str, bytes]:
        """Read the learner's files of an exercise.

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
        """Restore an exercise's original files. Return the backup folder, or None if the files were unchanged."""
        kept = self._back_up(exercise)
        self._ship(exercise)
        return kept

    def _back_up(self, exercise: Exercise) -> Path | None:
        """Copy the files that differ from the original ones."""
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
        """Add the course's new and updated files to the folder. Return one line per change.

        Replaces an outdated file only if the learner has not changed it.
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
            said.extend(self._remove_old_pages(progress.pages))
            said.extend(self._bring_in(self.path, shipped_programs(), progress.programs, ""))
            return replace(progress, pages=_digests(self._pages()), programs=_digests(shipped_programs()))

        update_progress(self.path, change)
        return said

    def _is_current(self, progress: Progress) -> bool:
        exercises = ((progress.work(exercise.id).shipped, shipped_files(exercise)) for exercise in self.exercises())
        others = ((progress.pages, self._pages()), (progress.programs, shipped_programs()))
        return all(known == _digests(files) for known, files in (*exercises, *others))

    def _pages(self) -> dict[str, bytes]:
        """Return the documentation pages: one per lab, and those that exercises, questions and labs refer to."""
        return {name: page.read_bytes() for name, page in find_pages(self.labs).items()}

    def _bring_in(self, place: Path, files: dict[str, bytes], before: dict[str, str], hint: str) -> Iterator[str]:
        """Write updated files and yield a line for each; keep files that the learner has changed."""
        for name, data in files.items():
            path = place / name
            present = _digest(_bytes(path)) if path.exists() else None
            if _digest(data) in (present, before.get(name)):
                continue
            if present in (None, before.get(name)):
                write_atomic(path, data)
                if name in before:
                    yield f"{self.shown(path)}: updated to the course's newer version"
            else:
                yield f"{self.shown(path)}: the course has a newer version; yours is unchanged{hint}"

    def _remove_old_pages(self, before: dict[str, str]) -> Iterator[str]:
        """Delete pages that the course has moved or dropped and yield a line for each; keep pages with notes."""
        docs, pages = self.path / "docs", self._pages()
        for path in sorted(docs.rglob("*.md")):
            name = path.relative_to(docs).as_posix()
            if name in before and name not in pages and _digest(_bytes(path)) == before[name]:
                path.unlink()
                yield f"{self.shown(path)}: removed, since the course has moved or dropped this page"


def shipped_programs() -> dict[str, bytes]:
    """Return the files that the labs' commands use: config/, scripts/ and train.py."""
    return {name: shipped_file(name).read_bytes() for name in _program_names()}


def _program_names() -> Iterator[str]:
    for top in ("config", "scripts"):
        folder = shipped_file(top)
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
        yield from (f"{top}/{path.relative_to(folder).as_posix()}" for path in paths)
    yield "train.py"


def shipped_files(exercise: Exercise) -> dict[str, bytes]:
    """Return the files of an exercise that go into a course folder."""
    return {"README.md": exercise.readme.encode(), **exercise.stub()}


def _digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: _digest(data) for name, data in files.items()}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bytes(path: Path) -> bytes:
    return read_bounded(path, UsageError, "move it away")


def open_folder(start: Path, labs: Path = LABS) -> LearnerFolder | None:
    """Return the course folder that contains `start`, or None."""
    path = find_folder(start.absolute())
    return LearnerFolder(path, labs) if path else None


def check_new(path: Path) -> None:
    """Raise UsageError if the folder is already a course folder or is not empty."""
    if is_folder(path.absolute()):
        raise UsageError(f"{path}: is already a course folder", f"cd {path} && frog learn")
    if not is_empty(path.absolute()):
        raise UsageError(f"{path}: is not empty", "frog learn init ~/frog-course")


def create_folder(path: Path, labs: Path = LABS, learner: str | None = None) -> LearnerFolder:
    """Create a course folder: exercises, progress.json, and a git repository if git is installed.

    Raises:  UsageError if the folder is not empty or cannot be created.
    """
    check_new(path)
    folder = LearnerFolder(path.absolute(), labs)
    try:
        (folder.path / "exercises").mkdir(parents=True, exist_ok=True)
        begin_progress(
            folder.path, learner or known_name(folder.path)
        )  # if this process is interrupted after this line, `frog learn` adds the missing files
        write_atomic(folder.path / "README.md", _README)
        write_atomic(folder.path / ".gitignore", _IGNORED, replace=False)
        folder.keep_up()
    except OSError as problem:
        raise UsageError(f"{path}: cannot create: {problem.strerror}", "choose another folder") from None
    _commit(folder.path)
    return folder


def is_empty(path: Path) -> bool:
    """Return True if a folder is empty or does not exist; hidden files (.git, .venv) do not count."""
    if not path.exists():
        return True
    if not path.is_dir():
        raise UsageError(f"{path}: is not a folder", "choose another path")
    return all(entry.name.startswith(".") for entry in path.iterdir())


def known_name(path: Path) -> str:
    """Return the name that git is configured with in this folder or its nearest existing parent, else the account's."""
    place = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
    with suppress(OSError, KeyError, UsageError):
        return checked_name(_git(place, "config", "user.name") or getpass.getuser())
    return "unknown"


def _commit(folder: Path) -> None:
    """Create a repository whose first commit is the original course. Do nothing without git or inside a repository."""
    if (folder / ".git").exists() or _git(folder, "init", "--quiet") is None:
        return
    who = ("-c", "user.name=Frog", "-c", "user.email=frog@localhost", "-c", "commit.gpgsign=false")
    _git(folder, "add", "--all")
    _git(folder, *who, "commit", "--quiet", "--no-verify", "-m", "The original course")


def _git(folder: Path, *words: str) -> str | None:
    """Return git's output; None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
