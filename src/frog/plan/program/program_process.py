"""Starts a program under fake tensors, a process for each rank that exchanges messages, and reads their facts."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.env import child_env
from frog.core.errors import FrogError
from frog.core.files import scratch_folder
from frog.plan.estimate.hardware import Cluster

_TRY = "docs/plan/program.md lists what can be planned"
_MOST_RANKS = 64
"""Processes of one plan."""
_POLL_S = 0.05


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
    is_module: bool = False
    """True if `program` is the name of a module, as after `python -m`."""

    def as_dict(self, rank: int) -> dict[str, Any]:
        """Return what the process of a rank needs."""
        gpu = self.cluster.gpu
        return {
            "program": self.program,
            "arguments": list(self.arguments),
            "is_module": self.is_module,
            "rank": rank,
            "world_size": self.nodes * self.cluster.gpus_per_node,
            "gpus_per_node": self.cluster.gpus_per_node,
            "gpu": gpu.name,
            "gpu_memory": int(gpu.memory),
            "num_sms": gpu.num_sms,
            "steps": self.steps,
        }


def record_program(request: Request, output: Any = None) -> dict[int, dict[str, Any]]:
    """Run a program until its last planned step, and return the facts of that step, by rank.

    The ranks are the requested one, those with which it exchanges messages, and so on.

    output: a file for what the program prints; default: stderr.

    Raises:  FrogError if the program cannot be planned, with the line that says why.
    """
    with scratch_folder("frog-program-") as folder:
        (folder / "cluster").write_bytes(pickle.dumps(request.cluster))
        ranks = _Ranks(request, folder, output or sys.stderr.fileno())
        try:
            while not ranks.have_ended():
                time.sleep(_POLL_S)
        finally:
            ranks.end()
        return ranks.facts


class _Ranks:
    """The processes of the ranks, of which the first one is started."""

    def __init__(self, request: Request, folder: Path, output: Any) -> None:
        self.request, self.folder, self.output = request, folder, output
        self.facts: dict[int, dict[str, Any]] = {}
        """The facts of the ranks that have ended."""
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._waited: dict[int, bytes] = {}
        """What all processes waited for, when that was last the case."""
        self._start(request.rank)

    def have_ended(self) -> bool:
        """Start the ranks that are wanted, read the facts of those that have ended; True if all have.

        Raises:  FrogError if a rank cannot be planned, or if all of them wait for messages.
        """
        for wanted in self.folder.glob("wanted-*"):
            rank = int(wanted.name.rpartition("-")[2])
            if rank not in self._running and rank not in self.facts:
                self._start(rank)
        for rank, process in list(self._running.items()):
            if process.poll() is not None:
                self._read(rank, process.returncode)
        self._end_if_all_wait()
        return not self._running

    def _start(self, rank: int) -> None:
        request = self.request
        if len(self._running) + len(self.facts) >= _MOST_RANKS:
            raise self._cannot(f"more than {_MOST_RANKS} ranks exchange messages, and each needs a process")
        asked = self.folder / f"request-{rank}"
        asked.write_text(json.dumps({**request.as_dict(rank), "folder": str(self.folder), "parent": os.getpid()}))
        self._running[rank] = subprocess.Popen(
            [sys.executable, "-P", "-m", "frog.plan.program.run_program_rank", str(asked)],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            env=child_env(**_world(request, rank), CUDA_VISIBLE_DEVICES=""),
        )

    def _read(self, rank: int, code: int) -> None:
        facts = self.folder / f"facts-{rank}"
        if not facts.is_file():
            raise self._cannot(f"rank {rank} ended with exit code {code}")
        del self._running[rank]
        self.facts[rank] = json.loads(facts.read_text())
        if self.facts[rank]["error"] is not None:
            raise self._first_error()

    def _first_error(self) -> FrogError:
        """Return the oldest error: a rank that waits for one that has failed fails after it."""
        for path in sorted(self.folder.glob("facts-*"), key=lambda path: path.stat().st_mtime_ns):
            facts = json.loads(path.read_text())
            if facts["error"] is None:
                continue
            if len(self.facts) + len(self._running) > 1:
                return self._cannot(f"rank {path.name[6:]}: {facts['error']}")
            if facts["ended_early"] and facts["steps"]:
                return self._cannot(facts["error"], f"--steps {facts['steps']} plans its last step")
            return self._cannot(facts["error"])
        raise AssertionError("no facts have an error")

    def _end_if_all_wait(self) -> None:
        """End a program whose processes all wait for messages that none of them sends."""
        try:
            waited = {rank: (self.folder / f"waits-{rank}").read_bytes() for rank in self._running}
        except FileNotFoundError:  # one of them is not waiting, or has just received its message
            return
        messages = {rank: pickle.loads(content) for rank, content in waited.items()}
        if any((self.folder / name).exists() for name, _, _ in messages.values()):
            return
        if waited != self._waited:
            self._waited = waited  # a process that has just received its message may be between two files
            return
        if any(not is_complete for _, _, is_complete in messages.values()):
            raise self._cannot("; ".join(text for _, text, _ in messages.values()) + ": all ranks wait")
        for rank in self._running:
            (self.folder / f"ended-{rank}").touch()

    def _cannot(self, why: str, advice: str = _TRY) -> FrogError:
        return FrogError(f"cannot plan {self.request.program}: {why}", advice)

    def end(self) -> None:
        """Kill the processes that still run."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()


def _world(request: Request, rank: int) -> dict[str, str]:
    """Return torchrun's variables of a rank. No process listens on the port."""
    per_node = request.cluster.gpus_per_node
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(request.nodes * per_node),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(rank // per_node),
        "NODE_RANK": str(rank // per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
