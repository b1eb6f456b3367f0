"""The records that training writes: run.json, the end of each start, and the first event of each rank.

run.json      the run's configuration, and each of its starts; written before the first step of a start
record.json   the farthest step that the run reached without failing, with the hashes that prove it
attempt.json  how the last start ended, if it failed or stopped before the step in record.json
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

import frog
from frog.core.config import RunConfig, to_dict
from frog.core.env import host_name
from frog.core.files import write_atomic, write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.record import FORMAT
from frog.core.units import now_text
from frog.train.comm import World
from frog.train.parallel.mesh import Mesh
from frog.train.setup import Run
from frog.train.workload import Workload


def write_run_json(run: Run, workload: Workload, from_step: int) -> None:
    """Write run.json, or add the current world to it when resuming."""
    if run.folder.run_json.exists():
        content = {"format": FORMAT, **msgspec.to_builtins(run.folder.read_run_json()), "config": to_dict(run.config)}
    else:
        content = new_run_json(
            run.folder, run.config, sys.argv, workload.num_parameters, workload.data, workload.tokenizer_json
        )
    if workload.finetune is not None:
        content["finetune"] = workload.finetune
    if run.config.strategy.file is not None:
        _keep_strategy(run, Path(run.config.strategy.file))
    content["segments"].append(_segment(run.world, run.mesh, from_step))
    write_json(run.folder.run_json, content)
    run.folder.link_logs()


def _keep_strategy(run: Run, file: Path) -> None:
    """Copy a strategy of one's own to the run folder; say so if it has changed since the run's last start."""
    kept, content = run.folder.strategy_py, file.read_bytes()
    if kept.exists() and kept.read_bytes() != content:
        run.log.say(f"{file} has changed since this run's last start; the run continues with the new version")
    write_atomic(kept, content)


def new_run_json(
    folder: RunFolder,
    config: RunConfig,
    argv: Sequence[str],
    num_parameters: int,
    data: dict[str, Any] | None,
    tokenizer_json: Path,
) -> dict[str, Any]:
    """Return the content of run.json for a new run, and copy its tokenizer, if any, to the run folder."""
    if tokenizer_json.is_file():
        shutil.copyfile(tokenizer_json, folder.tokenizer_json)
    return {
        "format": FORMAT,
        "name": folder.path.name,
        "created": now_text(),
        "argv": list(argv),
        "config": to_dict(config),
        "num_parameters": num_parameters,
        "data": data,
        "versions": {
            "frog": frog.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "segments": [],
    }


def write_end(folder: RunFolder, record: dict[str, Any]) -> None:
    """Write the end of a start that did not fail to record.json, unless an earlier start got farther.

    Deletes a failure written by a rank that the others continued without.
    """
    record = {
        "format": FORMAT,
        **record,
        "starts": len(folder.read_run_json().segments),
        "error": None,
        "ended": now_text(),
    }
    before = folder.read_achieved()
    is_achievement = before is None or record["step"] >= before.step
    folder.attempt_json.unlink(missing_ok=True)
    write_json(folder.record_json if is_achievement else folder.attempt_json, record)


def write_failure(folder: RunFolder, step: int, error: dict[str, Any], *, replace: bool) -> None:
    """Write that a start failed. Without `replace`, keep the failure that another rank has already written."""
    failure = {"format": FORMAT, "status": "failed", "step": step, "error": error, "ended": now_text()}
    write_json(folder.attempt_json, failure, replace=replace)


def _segment(world: World, mesh: Mesh, from_step: int) -> dict[str, Any]:
    """Return the entry for this start in run.json."""
    return {
        "world_size": world.size,
        "mesh": mesh.sizes,
        "num_nodes": world.env.num_nodes,
        "device": str(world.device.type),
        "threads": torch.get_num_threads(),
        "from_step": from_step,
        "host": host_name(),
        "started": now_text(),
    }


def start_event(run: Run, from_step: int) -> dict[str, Any]:
    """Return the fields of a rank's `start` event."""
    world, env = run.world, run.world.env
    return {
        "rank": env.rank,
        "world_size": env.world_size,
        "local_rank": env.local_rank,
        "node_rank": env.node_rank,
        "host": host_name(),
        "pid": os.getpid(),
        "device": str(world.device),
        "threads": torch.get_num_threads(),
        "step": from_step,
        "unix_ns": time.time_ns(),
        "mono_ns": time.monotonic_ns(),
        "mesh": run.mesh.sizes,
        "place": run.mesh.place,
        "passed_over": [asdict(damage) for damage in run.passed_over],
    }
