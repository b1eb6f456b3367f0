"""One node's agent: torchrun on this machine, as one of the simulated nodes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from frog.core.processes import is_alive, kill_group
from frog.core.terminal import terminal_columns, wrapped_lines
from frog.core.units import time_text
from frog.launch.nodes import Nodes

_JOIN_S = 120
"""Rendezvous timeout of the nodes."""

_MOST_EARLY = 10_000
"""Maximum lines of a node kept for its log until the run folder exists. Not every program creates one."""


def agent_command(
    nodes: Nodes, address: str, endpoint: str, reports: Path, target: Sequence[str], restarts: int
) -> list[str]:
    """Return the command that starts one node's agent.

    A single node hosts its own rendezvous, at a port that the system assigns. Several nodes meet at `endpoint`, which
    the launcher's store serves, and detect a lost node within 10 s.
    """
    size = str(nodes.most) if not nodes.elastic else f"{nodes.least}:{nodes.most}"
    conf = f"is_host=0,join_timeout={_JOIN_S},last_call_timeout=3,keep_alive_interval=2,keep_alive_max_attempt=5"
    return [
        *(sys.executable, "-P", "-u", "-m", "frog.launch.torchrun.agent", str(reports)),
        *("--nnodes", size, "--nproc-per-node", str(nodes.ranks), "--local-addr", address),
        *("--max-restarts", str(restarts), "--monitor-interval", "0.1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", reports.parent.parent.name),
        *(("--rdzv-conf", conf) if nodes.several else ()),
        *("--log-dir", str(reports.parent), *target),
    ]


@dataclass
class Agent:
    """A running agent, its reports so far, and the ranks that it has started."""

    node: int
    host: str
    process: subprocess.Popen[bytes]
    reports: Path
    """File of its reports, one per line."""
    pids: dict[int, int] = field(default_factory=dict)
    """Process ids of the ranks that it started last, and of replacements, by rank."""
    watched: dict[int, int] = field(default_factory=dict)
    """Process ids that should be running, by the rank that they were started as. Emptied after a failure that makes the
    agent end all ranks."""
    done: bool = False
    """True if its end has been handled."""
    excused: bool = False
    """True if its exit code does not count: the world continued without its node."""
    _read_bytes: int = 0
    _worked_at: float = 0.0
    _printer: threading.Thread | None = None

    def is_up(self) -> bool:
        """True if the agent is waiting for the other agents (frog.launch.torchrun.agent)."""
        return self.reports.with_suffix(".up").exists()

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield the reports since the last call, each with its node."""
        if not self.reports.exists():
            return
        with open(self.reports, "rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read_bytes += len(line)
                event = {**json.loads(line), "node": self.node}
                if event["event"] == "world":
                    self.pids = dict(zip(event["ranks"], event["pids"], strict=True))
                    self.watched = dict(self.pids)
                elif event["event"] == "exit":
                    self.watched.pop(event["rank"], None)
                elif event["event"] == "replace":
                    self.pids[event["rank"]] = self.watched[event["rank"]] = event["pid"]
                yield event

    def kill(self) -> None:
        """Kill the agent and all its ranks together, as a power failure would."""
        kill_group(self.process.pid)
        self.kill_ranks()

    def kill_ranks(self) -> None:
        """Kill the ranks that it started last, with their children."""
        for pid in self.pids.values():
            kill_group(pid)

    def has_ranks(self) -> bool:
        """True if a rank that it started last is still running."""
        return any(is_alive(pid) for pid in self.pids.values())

    def idle_s(self, since: float) -> float:
        """Return how long it has had no ranks, at most since `since`. Must be called often."""
        now = time.monotonic()
        if self.has_ranks():
            self._worked_at = now
        return now - max(since, self._worked_at)

    def copy_lines(self, copy_to: NodeOutput) -> None:
        """Copy its output and that of its ranks to `copy_to` from now on."""
        assert self.process.stdout is not None
        self._printer = threading.Thread(target=copy_to.copy, args=(self.process.stdout, self), daemon=True)
        self._printer.start()

    def finish(self) -> None:
        """Kill the rest of the ended agent's process group, and wait for the last lines of output."""
        kill_group(self.process.pid)
        if self._printer is not None and self.process.stdout is not None:
            self._printer.join(timeout=5)
            if not self._printer.is_alive():
                self.process.stdout.close()
        self.done = True


class NodeOutput:
    """Collects the output of several nodes: prints it with the node's name, and logs it with the time."""

    def __init__(self) -> None:
        self._logs: dict[int, IO[str]] = {}
        self._early: dict[int, deque[str]] = {}
        self._lock = threading.Lock()

    def copy(self, lines: IO[bytes], agent: Agent) -> None:
        """Read lines until the end; otherwise the ranks would block on a full pipe."""
        for raw in lines:
            line = raw.decode(errors="replace").rstrip("\n")
            with contextlib.suppress(OSError):  # the screen is closed, as by `| head`
                shown = wrapped_lines(f"{agent.host} | {line}", terminal_columns(), hang=len(agent.host) + 3)
                print(f"{shown}\n", end="", flush=True)
            with self._lock, contextlib.suppress(OSError):  # the disk is full
                self._keep(agent.node, f"{time_text()} {line}\n")

    def _keep(self, node: int, stamped: str) -> None:
        log = self._logs.get(node)
        if log is not None:
            log.write(stamped)
        else:
            self._early.setdefault(node, deque(maxlen=_MOST_EARLY)).append(stamped)

    def open_log(self, node: int, path: Path) -> None:
        """Write a node's earlier and future lines to this file."""
        with self._lock, contextlib.suppress(OSError):
            if node in self._logs:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            log = self._logs[node] = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
            log.writelines(self._early.pop(node, ()))

    def close(self) -> None:
        """Close all logs; later lines are dropped."""
        with self._lock:
            for log in self._logs.values():
                log.close()
            self._logs.clear()
