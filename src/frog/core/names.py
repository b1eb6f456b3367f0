"""Names of runs and data sets, which also name their folders."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def name_problem(name: str) -> str | None:
    """Return why this cannot be the name of a run or data set; None if it can.

    A valid name cannot lead outside its parent folder, and is a single word in every shell.
    """
    if _NAME.fullmatch(name):
        return None
    return (
        f"name={name[:100]!r}: use at most 100 letters, digits, '.', '_' and '-', starting with a letter or digit, "
        "since it names a folder"
    )
