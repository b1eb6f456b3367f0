"""Starts a program under fake tensors in a process of its own, and reads the facts that it leaves."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.env import child_env
from frog.core.errors import FrogError
from frog.plan.estimate.hardware import Cluster

_TRY = "docs/plan/program.md lists what can be planned"


@dataclass(frozen=True)
class Request:
    """A program with its arguments, and the place of the rank that runs it."""

    program: str
    arguments: Sequence[str]
    cluster: Cluster
    nodes: int = 1
    rank: int = 0
    steps: int = 2
    """Optimizer steps; the last one is planned."""

    def as_dict(self) -> dict[str, Any]:
        """Return what the process of the program needs."""
        gpu = self.cluster.gpu
        return {
            "program": self.program,
            "arguments": list(self.arguments),
            "rank": self.rank,
            "world_size": self.nodes * self.cluster.gpus_per_node,
            "gpus_per_node": self.cluster.gpus_per_node,
            "gpu": gpu.name,
            "gpu_memory": int(gpu.memory),
            "num_sms": gpu.num_sms,
            "steps": self.steps,
        }


def record_program(request: Request, output: Any = None) -> dict[str, Any]:
    """Run a program until its last planned step, and return the facts of that step.

    output: a file for what the program prints; default: stderr.

    Raises:  FrogError if the program cannot be planned, with the line that says why.
    """
    with tempfile.TemporaryDirectory(prefix="frog-plan-") as folder:
        asked, facts = Path(folder, "request.json"), Path(folder, "facts.json")
        cluster = Path(folder, "cluster.pickle")
        cluster.write_bytes(pickle.dumps(request.cluster))
        asked.write_text(json.dumps({**request.as_dict(), "cluster": str(cluster), "facts": str(facts)}))
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "frog.plan.program.run_program_rank", str(asked)],
            stdin=subprocess.DEVNULL,
            stdout=output or sys.stderr.fileno(),
            env=child_env(**_world(request), CUDA_VISIBLE_DEVICES=""),
            check=False,
        )
        if not facts.is_file():
            raise FrogError(f"cannot plan {request.program}: it ended with exit code {ended.returncode}", _TRY)
        found: dict[str, Any] = json.loads(facts.read_text())
    if found["error"] is not None:
        raise FrogError(f"cannot plan {request.program}: {found['error']}", _TRY)
    return found


def _world(request: Request) -> dict[str, str]:
    """Return torchrun's variables of a rank. No process listens on the port."""
    per_node = request.cluster.gpus_per_node
    return {
        "RANK": str(request.rank),
        "WORLD_SIZE": str(request.nodes * per_node),
        "LOCAL_RANK": str(request.rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(request.rank // per_node),
        "NODE_RANK": str(request.rank // per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
