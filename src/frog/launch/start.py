"""Starts the processes of a world: the store for the rendezvous of its nodes, and an agent per node."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.core.env import child_env, visible_gpus
from frog.core.machine import threads_per_rank
from frog.hooks import rank_environment
from frog.launch.node_agent import Agent, agent_command
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
