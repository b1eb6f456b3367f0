"""The report's section on the predicted step time: each phase next to what it took."""

from __future__ import annotations

from typing import Any

from frog.core.config.load import known_config
from frog.core.errors import ConfigError
from frog.core.runs.history import History
from frog.core.runs.record import RunFile
from frog.plan.calibrate_command import PROFILE
from frog.plan.estimate.hardware import find_cluster
from frog.plan.machine.measured import compare_phases


def prediction_section(run: RunFile, history: History) -> dict[str, Any] | None:
    """Return the rows of phases, or why a prediction is missing; None without a profile or a step on CPUs.

    The profile is that of the current folder, which `frog plan calibrate` writes.
    """
    config = known_config(run.config)
    if config is None or run.finetune is not None or history.last_segment is None:
        return None
    segment = history.segments[history.last_segment]
    if not segment.device.startswith("cpu"):
        return None
    if not PROFILE.is_file():
        return None
    if len(segment.hosts) > 1:
        return {"rows": [], "why": "The run had several nodes; a profile describes one machine."}
    try:
        cluster = find_cluster(str(PROFILE))
        if cluster.machine is None:
            return {"rows": [], "why": f"{PROFILE} was not written by frog plan calibrate."}
        rows = compare_phases(config, segment.world_size, cluster.machine, history)
    except ConfigError as problem:
        return {"rows": [], "why": problem.what}
    return {"rows": rows, "why": "", "profile": str(PROFILE), "source": cluster.source}
