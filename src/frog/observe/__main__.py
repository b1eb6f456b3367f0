"""Run a program with the observer: `python -m frog.observe my.py ...`, also below torchrun or srun.

The words after `frog.observe` are those after `python`: a script, or `-m package`. The evidence goes to the folder in
FROG_RUN_DIR, else to `runs/NAME`, where all ranks of the program meet.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from frog.core.env import child_env, variable
from frog.core.errors import UsageError
from frog.core.runs.observed import observed_folder
from frog.observe.environment import environment


def main(words: list[str]) -> NoReturn:
    """Replace this process by Python with the program."""
    try:
        folder = Path(variable("FROG_RUN_DIR") or Path("runs") / _name(words))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    with contextlib.suppress(OSError):  # the program runs unobserved
        observed_folder(folder).mkdir(parents=True, exist_ok=True)
    os.execve(sys.executable, [sys.executable, *_own_options(), *words], child_env(**environment(folder)))


def _name(words: list[str]) -> str:
    """Return the name of a program: the stem of its script, or its module."""
    if words[:1] == ["-m"] and len(words) > 1:
        return words[1]
    if not words or words[0].startswith("-"):
        raise UsageError("nothing to run", "python -m frog.observe my.py, or python -m frog.observe -m package")
    return Path(words[0]).stem


def _own_options() -> list[str]:
    """Return the options of this Python, such as -u, which the program's Python also gets."""
    words = sys.orig_argv[1:]
    return words[: words.index("-m")] if "-m" in words else []


if __name__ == "__main__":
    main(sys.argv[1:])
