"""Calls to a cluster's own programs: sbatch and kubectl."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from frog.core.env import child_env
from frog.core.errors import LaunchError

_TIMEOUT_S = 120


def call_cluster_program(
    words: Sequence[str],
    *,
    absent: tuple[str, str],
    unanswered: str,
    hint: Callable[[str], str],
    folder: Path = Path(),
    text: str | None = None,
) -> str:
    """Call a program such as sbatch or kubectl in `folder`, with `text` as input; return its output.

    Raises:  LaunchError if it is not on PATH (`absent`: message and hint), does not answer (`unanswered`: hint) or
             fails: with its message, and the hint for that message.
    """
    program = shutil.which(words[0])
    name = " ".join(word for word in words[:2] if not word.startswith("-"))
    if program is None:
        raise LaunchError(*absent)
    try:
        done = subprocess.run(
            [program, *words[1:]],
            cwd=folder,
            env=child_env(),
            input=text,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{name}: no answer within {_TIMEOUT_S} s", unanswered) from None
    if done.returncode != 0:
        answer = (done.stderr or done.stdout).strip()
        raise LaunchError(f"{name} ended with exit code {done.returncode}\n{answer}", hint(answer))
    return done.stdout
