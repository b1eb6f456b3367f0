"""Names that job files of another site use: partitions, features of nodes, and commands of that site."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from frog.core.errors import UsageError

COMMANDS = "commands"
"""Folder of the commands without effect, inside a cluster's folder."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")


@dataclass(frozen=True)
class SiteNames:
    """Names that a cluster on this machine accepts besides its own."""

    partitions: tuple[str, ...] = ()
    """Further names of the one partition."""
    features: tuple[str, ...] = ()
    """Features for --constraint, which every node has."""
    commands: tuple[str, ...] = ()
    """Commands that do nothing but say so on stderr."""

    def __post_init__(self) -> None:
        for option, names in (("partition", self.partitions), ("feature", self.features), ("stub", self.commands)):
            for name in names:
                if not _NAME.fullmatch(name):
                    raise UsageError(f"--{option} {name!r}: expected a name", f"--{option} NAME[,NAME]")

    @property
    def all_partitions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("main", *self.partitions)))

    def write_commands(self, folder: Path) -> None:
        """Write the commands into a folder for PATH.

        A script may also `source` one, such as conda's `activate`, so none may end with `exit`.
        """
        if self.commands:
            folder.mkdir(exist_ok=True)
        for name in self.commands:
            say = f'echo "frog: no effect here: {name} $*" >&2'
            (folder / name).write_text(f"#!/bin/sh\n{say}\n")
            (folder / name).chmod(0o755)


def remove_commands(folder: Path) -> None:
    """Remove the commands that `write_commands` wrote, and no other files."""
    for file in folder.glob("*"):
        if file.is_file() and "frog: no effect here: " in file.read_text(errors="replace"):
            file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def split_names(texts: list[str]) -> tuple[str, ...]:
    """Return the names in repeated options with commas."""
    return tuple(dict.fromkeys(name for text in texts for name in text.replace(",", " ").split()))


def shell_path(folder: Path, *others: str) -> list[str]:
    """Return the folders to put before `others` in PATH."""
    commands = folder.resolve() / COMMANDS
    return [*([str(commands)] if commands.is_dir() else []), *(other for other in others if other != str(commands))]
