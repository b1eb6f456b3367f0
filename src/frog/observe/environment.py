"""The environment that starts the observer, or simulates GPUs, in every rank below a launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from frog.core.env import variable

HOOK = Path(__file__).parent / "hook"
SIMULATED_GPUS = "frog_simulated_gpus"
"""The hook that simulates GPUs."""


def environment(
    folder: Path, *, hooks: tuple[str, ...] = ("frog_observer",), before: str | None = None
) -> dict[str, str]:
    """Return the variables with which the ranks of a launcher write their evidence to `folder`, a run folder.

    hooks: modules on the path to install, in this order, before that of simulated GPUs where this process has them.
    before: the ranks' PYTHONPATH so far (default: this
    process's), whose entries follow the observer's.
    """
    if variable("FROG_SIMULATE_GPUS") and SIMULATED_GPUS not in hooks:  # this shell has them: they stay
        hooks = (*hooks, SIMULATED_GPUS)
    before = before or variable("PYTHONPATH") or ""
    entries = [entry for entry in before.split(os.pathsep) if entry and entry != str(HOOK)]
    path = os.pathsep.join((str(HOOK), *entries))
    return {"FROG_RUN_DIR": str(folder.resolve()), "FROG_HOOKS": ",".join(hooks), "PYTHONPATH": path}


def rank_environment(
    before: Mapping[str, str], folder: Path | None, modules: tuple[str, ...], num_gpus: int | None
) -> dict[str, str]:
    """Return what to add to the environment of a launch's ranks: the observer, and simulated GPUs.

    before: the launcher's other variables for them. folder: where the observer records; None: not observed.
    """
    added = {} if folder is None else environment(folder, hooks=modules)
    return added if num_gpus is None else {**added, **simulated_gpus(num_gpus, {**before, **added})}


def simulated_gpus(count: int | None, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that add simulated GPUs to a process and its children (docs/observe/simulated-gpus.md).

    count: GPUs of a node; None: those that Slurm gives to a job. changes: other variables of the process, whose hooks
    and PYTHONPATH this keeps.
    """
    before = changes or {}
    hooks = before.get("FROG_HOOKS") or variable("FROG_HOOKS")
    path = before.get("PYTHONPATH") or variable("PYTHONPATH")
    entries = [entry for entry in (path or "").split(os.pathsep) if entry and entry != str(HOOK)]
    others = [name for name in (hooks or "").split(",") if name and name != SIMULATED_GPUS]
    return {
        "FROG_SIMULATE_GPUS": "slurm" if count is None else str(count),
        "FROG_HOOKS": ",".join([*others, SIMULATED_GPUS]),
        "PYTHONPATH": os.pathsep.join((str(HOOK), *entries)),
    }
