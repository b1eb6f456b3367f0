"""Names that people give to runs and data sets, and so to folders."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def name_problem(name: str) -> str | None:
    """Why that cannot be the name of a run or of a data set; None if it can.

    A name that this lets through stays in the folder that it is looked for in, and is a word in every shell.
    """
    if _NAME.fullmatch(name):
        return None
    return (
        f"name={name[:100]!r}: use letters, digits, '.', '_' and '-', 100 at most, the first a letter or digit, "
        "since it names a folder"
    )
