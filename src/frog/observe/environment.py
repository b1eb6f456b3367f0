"""The environment that starts the observer in every rank below a launcher."""

from __future__ import annotations

import os
from pathlib import Path

from frog.core.env import variable

HOOK = Path(__file__).parent / "hook"


def environment(
    folder: Path, *, hooks: tuple[str, ...] = ("frog_observer",), before: str | None = None
) -> dict[str, str]:
    """Return the variables with which the ranks of a launcher write their evidence to `folder`, a run folder.

    hooks: modules on the path to install, in this order. before: the ranks' PYTHONPATH so far (default: this
    process's), whose entries follow the observer's.
    """
    before = before or variable("PYTHONPATH")
    path = str(HOOK) if before is None else os.pathsep.join((str(HOOK), before))
    return {"FROG_RUN_DIR": str(folder.resolve()), "FROG_HOOKS": ",".join(hooks), "PYTHONPATH": path}
