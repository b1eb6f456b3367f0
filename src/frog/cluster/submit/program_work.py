"""A program that is not Frog's, as the work of a job: its command, and how torchrun starts it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from frog.core.errors import UsageError

_PYTHON = re.compile(r"python[\d.]*")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun")


class Work(Protocol):
    """What a job runs: a run of Frog's trainer, or a program."""

    @property
    def name(self) -> str: ...

    def world_problems(self, world_size: int) -> list[str]: ...


@dataclass(frozen=True)
class ProgramWork:
    """A program of the user's own."""

    words: tuple[str, ...]
    """Its command: `my.py ...`, `-m package ...`, `python my.py ...`, or another command."""
    name: str
    """Name of the job; that of its run folder followed by the job's number."""
    requeue: bool = False
    """True if the program resumes from its own checkpoints, so that the job may start again."""
    observer: Path | None = None
    """Folder of the observer's code, as the job sees it; None to run without. In a bundle it is relative."""
    folder: str | None = None
    """Folder of a bundle that has the program's files; None to run where the job is submitted."""
    own_python: bool = False
    """True if a bundle's setup.sh creates the environment."""

    def world_problems(self, world_size: int) -> list[str]:
        return []

    @property
    def target(self) -> str:
        """The program as torchrun's last words, quoted for a shell."""
        return shlex.join(self.torchrun_words)

    @property
    def torchrun_words(self) -> tuple[str, ...]:
        """The program as torchrun's last words. torchrun reads $$ as one $."""
        words = self.words_after_python
        if words[0] != "-m" and not words[0].endswith(".py"):
            words = ("--no-python", *self.words)
        return tuple(word.replace("$", "$$") for word in words)

    @property
    def words_after_python(self) -> tuple[str, ...]:
        """The command without a Python in front of it."""
        return self.words[1:] if _PYTHON.fullmatch(self.words[0]) else self.words

    @property
    def file(self) -> str | None:
        """The script or program that must exist in the job's folder; None for a module or a command on PATH."""
        words = self.words_after_python
        return words[0] if words and (words[0].endswith(".py") or "/" in words[0]) else None


def program_work(
    words: Sequence[str], *, to: str, requeue: bool, observer: Path | None, name: str | None
) -> ProgramWork:
    """Return the work that runs a command on a kind of cluster, `to`. A pod's image can have a program of its own.

    Raises:  UsageError if the file does not exist, or if the command would start ranks itself.
    """
    first = Path(words[0]).name
    if first in _LAUNCHERS:
        raise UsageError(
            f"{first}: the job file starts torchrun on every node itself",
            f"frog submit --to {to} --nodes 2 --ranks-per-node 4 -- {_after_launcher(words)}",
        )
    script = next((word for word in words if not word.startswith("-") and not _PYTHON.fullmatch(word)), first)
    stem = script.rpartition(".")[2] if "-m" in words[:2] else Path(script).stem
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name or stem).strip("-.")
    found = ProgramWork(tuple(words), plain or "program", requeue, observer)
    if len(words) == 1 and _PYTHON.fullmatch(words[0]):
        raise UsageError(f"{words[0]}: no script to run", f"frog submit --to {to} -- my.py")
    if any(not word.isprintable() for word in words):
        raise UsageError("the command must be one line of printable characters", "put it into a script")
    in_image = to == "kubernetes" and found.file is not None and Path(found.file).is_absolute()
    if found.file is not None and not in_image and not Path(found.file).is_file():
        raise UsageError(f"{found.file}: no such file", "submit from the folder that contains it")
    return found


def _after_launcher(words: Sequence[str]) -> str:
    place = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
    return "my.py" if place is None else shlex.join(words[place:])
