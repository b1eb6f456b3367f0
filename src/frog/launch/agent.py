"""One node's agent: torchrun on this machine, as one of the pretended nodes."""

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
from frog.core.units import time_text
from frog.core.wrapping import terminal_columns, wrapped_lines
from frog.launch.nodes import Nodes

_JOIN_S = 120
"""How long the nodes of a world wait for each other."""

_MOST_EARLY = 10_000
"""Lines of a node that are kept for its log until there is a run folder. Not every program makes one."""


def agent_command(
    nodes: Nodes, address: str, endpoint: str, reports: Path, target: Sequence[str], restarts: int
) -> list[str]:
    """The command that starts one node's agent.

    One node alone hosts the rendezvous of its ranks itself, at a port that the system gives out; several meet at
    `endpoint`, which the launcher's store serves, and find out within 10 s that one has gone.
    """
    size = str(nodes.most) if not nodes.elastic else f"{nodes.least}:{nodes.most}"
    conf = f"is_host=0,join_timeout={_JOIN_S},last_call_timeout=3,keep_alive_interval=2,keep_alive_max_attempt=5"
    return [
        *(sys.executable, "-u", "-m", "frog.launch.torchrun.agent", str(reports)),
        *("--nnodes", size, "--nproc-per-node", str(nodes.ranks), "--local-addr", address),
        *("--max-restarts", str(restarts), "--monitor-interval", "0.1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", reports.parent.parent.name),
        *(("--rdzv-conf", conf) if nodes.several else ()),
        *("--log-dir", str(reports.parent), *target),
    ]


@dataclass
class Agent:
    """A running agent, what it has reported so far, and the ranks that it has started."""

    node: int
    host: str
    process: subprocess.Popen[bytes]
    reports: Path
    """The file of what it reports, line by line."""
    pids: dict[int, int] = field(default_factory=dict)
    """Of the ranks that it started last, and of those that took the place of lost ones, by rank."""
    watched: dict[int, int] = field(default_factory=dict)
    """Those that should be going on, by the rank as which they were started. Whoever hears of a failure after which the
    agent itself ends the rest empties it."""
    done: bool = False
    """Its end was dealt with."""
    excused: bool = False
    """How it ended says nothing about the run: its node had gone, and the world went on without it."""
    _read_bytes: int = 0
    _worked_at: float = 0.0
    _printer: threading.Thread | None = None

    def is_up(self) -> bool:
        """Whether it has begun to wait for the others (frog.launch.torchrun.agent)."""
        return self.reports.with_suffix(".up").exists()

    def news(self) -> Iterator[dict[str, Any]]:
        """What it has reported since it was last asked, with the node it comes from."""
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
        """End the agent and all its ranks at once, as a machine ends that loses its power."""
        kill_group(self.process.pid)
        self.kill_ranks()

    def kill_ranks(self) -> None:
        """Kill the ranks that it started last, each with its own children."""
        for pid in self.pids.values():
            kill_group(pid)

    def has_ranks(self) -> bool:
        """Whether a rank that it started last still runs."""
        return any(is_alive(pid) for pid in self.pids.values())

    def idle_s(self, since: float) -> float:
        """How long it has been seen without ranks, counted from `since` on; to be asked often."""
        now = time.monotonic()
        if self.has_ranks():
            self._worked_at = now
        return now - max(since, self._worked_at)

    def copy_lines(self, copy_to: Output) -> None:
        """From now on, its lines and its ranks' go to `copy_to`."""
        assert self.process.stdout is not None
        self._printer = threading.Thread(target=copy_to.copy, args=(self.process.stdout, self), daemon=True)
        self._printer.start()

    def finish(self) -> None:
        """Once it has ended: kill what is left of its process group, and wait for its last lines."""
        kill_group(self.process.pid)
        if self._printer is not None and self.process.stdout is not None:
            self._printer.join(timeout=5)
            if not self._printer.is_alive():
                self.process.stdout.close()
        self.done = True


class Output:
    """Takes the lines of several nodes: to the screen with the node's name, to its log with the time."""

    def __init__(self) -> None:
        self._logs: dict[int, IO[str]] = {}
        self._early: dict[int, deque[str]] = {}
        self._lock = threading.Lock()

    def copy(self, lines: IO[bytes], agent: Agent) -> None:
        """Take all lines to their end: if nobody did, the ranks would wait for a full pipe to empty."""
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
        """From now on, and from before, a node's lines also go to that file."""
        with self._lock, contextlib.suppress(OSError):
            if node in self._logs:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            log = self._logs[node] = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
            log.writelines(self._early.pop(node, ()))

    def close(self) -> None:
        """Close all logs; lines that come later are dropped."""
        with self._lock:
            for log in self._logs.values():
                log.close()
            self._logs.clear()
