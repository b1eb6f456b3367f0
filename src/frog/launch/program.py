"""The program that a world runs: one of Frog's programs, a script, a module, or any command."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frog.core.errors import UsageError

_PROGRAMS = {
    "train": "frog.train",
    "finetune": "frog.train.finetune",
    "prove": "frog.train.prove.prove_rank",
    "profile": "frog.train.profile.profile_rank",
    "explain": "frog.learn.explain.explain_rank",
    "collectives": "frog.measure.peers.peers_rank",
}
"""Frog's programs that run on every rank."""


_RESUMABLE = frozenset({"train", "finetune"})
"""Programs that resume from their last checkpoint after a restart."""

_LAUNCHERS = {
    **dict.fromkeys(("mpirun", "mpiexec", "srun", "horovodrun", "deepspeed", "colossalai"), ()),
    "accelerate": ("launch",),
}
"""Other launchers of ranks, each with the subcommand that starts them."""

_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*|(?:ba|da|z|k)?sh")
_OF_FROG = re.compile(rb"^\s*(?:from|import)\s+frog\.(?!observe\b|record\b)", re.MULTILINE)
"""An import in a script that runs Frog's own trainer or parts of it, which record themselves."""
_MOST_BYTES = 1 << 20

Kind = Literal["frog", "script", "module", "command"]


@dataclass(frozen=True)
class RankProgram:
    """What every rank runs."""

    words: tuple[str, ...]
    """The command as typed."""
    target: tuple[str, ...]
    """torchrun's arguments for it."""
    kind: Kind
    """"frog": one of Frog's programs, or a script that uses Frog's trainer: it writes its own run folder."""
    name: str
    """Name of its run folder."""


def can_resume(program: Sequence[str]) -> bool:
    """True if a program can resume after a restart. Assumed for programs that are not Frog's."""
    return program[0] in _RESUMABLE or program[0] not in _PROGRAMS


def can_be_joined(program: Sequence[str]) -> bool:
    """True if ranks can join a run of this program. Assumed for programs that are not Frog's."""
    return program[0] == "train" or program[0] not in _PROGRAMS


def parse_program(words: Sequence[str]) -> RankProgram:
    """Return the program that a command names.

        train RUN.toml ...       one of Frog's programs
        my.py ...                a Python script
        -m package ...           a Python module
        python my.py ...         any command: found in a folder or on PATH

    Raises:  UsageError if there is nothing to run, the program does not exist, or it would start ranks itself.
    """
    if not words:
        raise UsageError(
            "nothing to run", "frog run --nproc 4 -- train config/demo.toml, or frog run --nproc 4 -- my.py"
        )
    first, *rest = words
    if first in _PROGRAMS:
        return RankProgram(tuple(words), ("-m", _PROGRAMS[first], *rest), "frog", first)
    if first == "-m":
        return _module(words)
    _refuse_launcher(words)
    path = Path(first)
    if path.is_file() and (path.suffix == ".py" or not _is_command(path)):
        kind: Kind = "frog" if _uses_frog(path) else "script"
        return RankProgram(tuple(words), tuple(words), kind, _name(path.stem))
    if path.is_file() or shutil.which(first):
        return RankProgram(tuple(words), ("--no-python", *words), "command", _name(_stem(words)))
    raise UsageError(
        f"{first}: neither a script, a command, nor a frog command that runs on every rank ({', '.join(_PROGRAMS)})",
        "frog run --nproc 4 -- my.py, or frog run --nproc 4 -- train RUN.toml",
    )


def _module(words: Sequence[str]) -> RankProgram:
    if len(words) < 2:
        raise UsageError("-m: names no module", "frog run --nproc 4 -- -m package.module")
    kind: Kind = "frog" if words[1].startswith("frog.") else "module"
    return RankProgram(tuple(words), tuple(words), kind, _name(words[1]))


def _refuse_launcher(words: Sequence[str]) -> None:
    """Refuse other launchers, since each rank would start all ranks again."""
    name = Path(words[0]).name
    subcommand = _LAUNCHERS.get(name)
    if subcommand is not None and tuple(words[1 : 1 + len(subcommand)]) == subcommand:
        command = " ".join([name, *subcommand])
        raise UsageError(
            f"{command}: starts ranks itself, and frog run would start it once per rank",
            "name the program that it starts: frog run --nproc 4 -- my.py ...",
        )


def _is_command(path: Path) -> bool:
    """True if a file without the suffix .py can be executed; otherwise Python runs it.

    Raises:  UsageError for a shell script that cannot be executed.
    """
    executable = shutil.which(path.absolute()) is not None
    with open(path, "rb") as file:
        head = file.read(2)
    if path.suffix in (".sh", ".bash") and not (executable and head == b"#!"):
        missing = "has no #! line" if executable else "is not executable"
        raise UsageError(f"{path}: {missing}", f"frog run --nproc 4 -- bash {path} ...")
    return executable


def _uses_frog(script: Path) -> bool:
    """True if a script imports Frog's own packages: its trainer writes logs and a run folder itself."""
    with open(script, "rb") as file:
        return _OF_FROG.search(file.read(_MOST_BYTES)) is not None


def _stem(words: Sequence[str]) -> str:
    """Return the stem of the script that a command runs, or of the command: `my` for `python -u my.py`."""
    command = Path(words[0])
    if _INTERPRETER.fullmatch(command.name):
        if "-m" in words[:-1]:
            return words[words.index("-m") + 1]
        for word in words[1:]:
            if not word.startswith("-") and Path(word).is_file():
                return Path(word).stem
    return command.stem


def _name(stem: str) -> str:
    """Return a name for a folder."""
    return re.sub(r"[^\w.-]+", "_", stem).strip("._-")[:80] or "program"
