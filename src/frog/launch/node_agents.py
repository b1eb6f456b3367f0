"""Agents of nodes: starts a torchrun agent per simulated node and the store for their rendezvous, reads their reports.

`Starter` starts the processes of a world, each with its environment. `Agent` is a running agent with its ranks, and
`NodeOutput` prints and logs the output of several nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from frog.core.env import child_env, visible_gpus
from frog.core.machine import threads_per_rank
from frog.core.processes import is_alive, kill_group
from frog.core.terminal import terminal_columns, wrapped_lines
from frog.core.units import time_text
from frog.hooks import rank_environment
from frog.launch.nodes import Nodes
from frog.launch.rank_output import RankOutput

if TYPE_CHECKING:
    from frog.launch.network import Link, Network

_STORE_PORT = 29400
"""Port inside the nodes' own network, where it is always free."""


@dataclass(frozen=True)
class Options:
    """Options for starting and watching a world."""

    threads: int | None = None
    restarts: int = 0
    deadline_s: float = 60.0
    """Kill a rank that sends no heartbeat for this long, and a program that is not Frog's if all its ranks wait."""
    idle_s: float = 300.0
    """The same for a program that is not Frog's if a rank waits outside a collective."""
    stuck_s: float = 300.0
    """Kill a rank that waits in one collective for this long, unless its `train.timeout_s` allows more."""
    repair_s: float = 5.0
    """Time that an elastic world runs without a lost node; in other worlds the node returns immediately."""
    replace: int = 0
    """Maximum number of lost ranks to replace in an elastic run."""
    network: Link | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)
    runs: Path | None = None
    """Folder in which to create the run folder of a program that is not Frog's; None: such a program leaves none."""
    observe: bool = True
    """Start the observer in each rank of such a program (frog.observe)."""
    simulate_gpus: int | None = None
    """Number of GPUs per node to simulate on the CPU."""
    hooks: tuple[str, ...] = ("frog_observer",)
    """Modules of `observe/hook` to start in each rank if it is observed."""
    on_folder: Callable[[Path], None] | None = None
    """Called with the run folder of such a program before its ranks start."""
    watch: Callable[[Path], None] | None = None
    """Called again and again with the run folder of any program, as soon as there is one."""


class Starter:
    """Starts a world's processes, and ends the store."""

    def __init__(
        self, nodes: Nodes, words: Sequence[str], options: Options, scratch: Path, network: Network | None
    ) -> None:
        self.nodes, self.words, self.options, self.scratch, self.network = nodes, words, options, scratch, network
        self._store: subprocess.Popen[bytes] | None = None
        self._endpoint = "127.0.0.1:0"
        self._num_agents = 0
        self.output: RankOutput | None = None
        """Reads the ranks' output; None: they write to the launcher's own, or with several nodes to their agent's."""

    def describe(self) -> dict[str, Any]:
        """Return the fields of the launcher's first event."""
        every = range(self.nodes.most)
        network = self.options.network
        return {
            "nodes": [{"node": n, "host": self.nodes.host(n), "address": self.address(n)} for n in every],
            "ranks_per_node": self.nodes.ranks,
            "program": list(self.words),
            "restarts": self.options.restarts,
            "network": network.describe() if network else None,
        }

    def address(self, node: int) -> str:
        """Return a node's address."""
        return self.network.address(node) if self.network else self.nodes.address(node)

    def start_store(self) -> None:
        """Start the store for the rendezvous of several nodes."""
        module = [sys.executable, "-P", "-m", "frog.launch.torchrun.store"]
        env = child_env(FROG_LAUNCHER_PID=str(os.getpid()))
        if self.network is not None:
            self._endpoint = f"{self.address(0)}:{_STORE_PORT}"
            command = self.network.enter(0, [*module, self._endpoint])
            self._store = subprocess.Popen(command, env=env, start_new_session=True)
            return
        with socket.create_server(("127.0.0.1", 0)) as listening:
            descriptor = listening.fileno()
            self._store = subprocess.Popen(
                [*module, str(descriptor)], env=env, pass_fds=(descriptor,), start_new_session=True
            )
            self._endpoint = f"127.0.0.1:{listening.getsockname()[1]}"

    def start_agent(self, node: int) -> Agent:
        """Start a node's agent."""
        reports = self.scratch / f"node_{node}_{self._num_agents}" / "reports.jsonl"
        reports.parent.mkdir()
        self._num_agents += 1
        if self.output is not None:
            self.output.open_pipes(
                reports.parent, self.nodes.ranks, self.nodes.host(node) if self.nodes.several else ""
            )
        restarts = self.options.restarts
        command = agent_command(self.nodes, self.address(node), self._endpoint, reports, self.words, restarts)
        if self.network is not None:
            command = self.network.enter(node, command)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if self.nodes.several else {}
        process = subprocess.Popen(command, env=self.environment(node), start_new_session=True, **pipes)  # type: ignore[call-overload]
        return Agent(node, self.nodes.host(node), process, reports)

    def close(self) -> None:
        """End the store. Does not end the agents."""
        if self._store is not None:
            self._store.kill()
            self._store.wait()

    def environment(self, node: int) -> dict[str, str]:
        """Return the environment of a node's agent, which its ranks inherit."""
        num_ranks = self.nodes.most * self.nodes.ranks
        threads = self.options.threads or threads_per_rank(num_ranks)
        changes = {
            "OMP_NUM_THREADS": str(threads),
            "FROG_LAUNCHER_PID": str(os.getpid()),
            "FROG_LAUNCH_DIR": str(self.scratch),
            "FROG_REPLACE": str(self.options.replace),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # a separate store for each attempt, without stale keys
            **self.options.extra_env,
        }
        if self.nodes.several:
            changes["FROG_NODE_NAME"] = self.nodes.host(node)
            gpus = visible_gpus() if self.options.simulate_gpus is None else []
            if gpus:  # simulated nodes have none in common, as real ones
                first, own = node * self.nodes.ranks, self.nodes.ranks
                changes["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + own]) if len(gpus) >= num_ranks else ""
        if self.network is not None:
            changes["GLOO_SOCKET_IFNAME"] = self.network.interface
        folder = None
        if self.output is not None:
            changes["PYTHONUNBUFFERED"] = "1"  # a killed rank would lose its last lines
            if self.options.observe and self.output.folder is not None:
                folder = self.output.folder.path
        changes.update(rank_environment(changes, folder, self.options.hooks, self.options.simulate_gpus))
        return child_env(**changes)


# ---- one agent -------------------------------------------------------------------------------------------------------

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
