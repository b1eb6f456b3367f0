"""A world on this machine: one torchrun agent for each (pretended) node, watched, and nothing left of it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from frog.core.env import child_env
from frog.core.errors import LaunchError, UsageError
from frog.launch.agent import Agent, Output, agent_command
from frog.launch.journal import Journal
from frog.launch.nodes import Nodes, world_table
from frog.launch.outcome import Failure, in_words, world_error
from frog.launch.program import target
from frog.launch.watch import find_hangs, keep_heartbeats

if TYPE_CHECKING:
    from frog.launch.network import Link, Network

_GRACE_S = 45.0
"""From asking a world to stop to killing it: time for a step and a checkpoint. torchrun itself waits 30 s."""

_PATIENCE_S = 20.0
"""How long the other nodes may take to notice that one has failed, before they are asked to stop."""

_LOOK_S = 0.5
"""Between two looks at the heartbeats."""

_STORE_PORT = 29400
"""Inside a network of its own, where nobody else is."""


@dataclass(frozen=True)
class Options:
    """How a world is started and watched."""

    threads: int | None = None
    restarts: int = 0
    deadline_s: float = 60.0
    """A rank that gives no sign of life for so long is killed."""
    stuck_s: float = 300.0
    """So is one that waits in a single collective for so long. Its own `train.timeout_s` should come first."""
    repair_s: float = 15.0
    """After which a node that has gone comes back, if the world can shrink; at once if it cannot."""
    network: Link | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)


def run_world(nodes: Nodes | int, program: Sequence[str], options: Options = Options()) -> int:
    """Run `program` on every rank of a world under torchrun; return the exit code of the world.

    `program` is a frog command that trains (`train RUN.toml ...`) or a Python script with its arguments. A number of
    `nodes` is that many ranks on one node.

    Raises:  UsageError if there is nothing to run; LaunchError, with the first failing rank's own words, if it fails.
    """
    if isinstance(nodes, int):
        if nodes < 1:
            raise UsageError(f"--nproc {nodes}: a world has at least one rank")
        nodes = Nodes(1, 1, nodes)
    words = target(program)
    with tempfile.TemporaryDirectory(prefix="frog-world-") as scratch, ExitStack() as stack:
        network = None
        if options.network is not None:
            from frog.launch.network import Network

            network = stack.enter_context(Network(nodes.most, options.network))
        launch = _Launch(nodes, words, options, Path(scratch), network)
        stack.callback(launch.clean_up)
        return launch.run()


class _Launch:
    """One `frog run`, from the first agent's start to the last one's end."""

    def __init__(
        self, nodes: Nodes, words: Sequence[str], options: Options, scratch: Path, network: Network | None
    ) -> None:
        self.nodes, self.words, self.options, self.scratch, self.network = nodes, words, options, scratch, network
        self.journal, self.output = Journal(scratch), Output()
        self.agents: list[Agent] = []
        self.failures: list[Failure] = []
        self.signals: list[int] = []
        self.lost: dict[str, int] = {}
        self._store: subprocess.Popen[bytes] | None = None
        self._shown: dict[int, list[dict[str, Any]]] = {}
        self._comes_back: dict[int, float] = {}
        self._asked_at: float | None = None
        self._failed_at: float | None = None
        self._finished_at: float | None = None
        self._returns = 0
        self._next_look = 0.0

    def run(self) -> int:
        """Start the nodes, stay until all have ended; return the exit code, or raise the world's error."""
        hosts = [{"node": n, "host": self.nodes.host(n), "address": self._address(n)} for n in range(self.nodes.most)]
        self.journal.tell(
            "launch",
            pid=os.getpid(),
            nodes=hosts,
            ranks_per_node=self.nodes.ranks,
            program=list(self.words),
            restarts=self.options.restarts,
            network=self.options.network.describe() if self.options.network else None,
        )
        self._endpoint = self._start_store() if self.nodes.several else "127.0.0.1:0"
        with self._take_signals():
            for node in range(self.nodes.most):
                self._start(node)
            while self._running() or self._comes_back:
                time.sleep(0.05)
                self._tick()
        self._tick()
        error = self._error()
        code = 128 + self.signals[0] if self.signals else error.exit_code if error else 0
        self.journal.tell("end", code=code, network=self._network_figures())
        if error and not self.signals:
            raise error
        return code

    def _network_figures(self) -> dict[str, Any] | None:
        """What went over the nodes' links; None without them, or if the switch has died."""
        with contextlib.suppress(LaunchError):
            return self.network.describe() if self.network else None
        return None

    def clean_up(self) -> None:
        """Kill whatever is left; it is nothing when all went well."""
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.kill()
                agent.process.wait()
            agent.finish()
        if self._store is not None:
            self._store.kill()
            self._store.wait()
        self.output.close()

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _address(self, node: int) -> str:
        return self.network.address(node) if self.network else self.nodes.address(node)

    def _start_store(self) -> str:
        """Serve the place where the nodes meet; return its address and port."""
        module = [sys.executable, "-m", "frog.comm.store"]
        if self.network is not None:
            endpoint = f"{self._address(0)}:{_STORE_PORT}"
            self._store = subprocess.Popen(self.network.enter(0, [*module, endpoint]), start_new_session=True)
            return endpoint
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._store = subprocess.Popen(
                [*module, str(listening.fileno())], pass_fds=(listening.fileno(),), start_new_session=True
            )
            return f"127.0.0.1:{listening.getsockname()[1]}"

    def _start(self, node: int) -> None:
        outcome = self.scratch / f"node_{node}_{len(self.agents)}" / "outcome.json"
        outcome.parent.mkdir()
        address = self._address(node)
        command = agent_command(self.nodes, address, self._endpoint, outcome, self.words, self.options.restarts)
        if self.network is not None:
            command = self.network.enter(node, command)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if self.nodes.several else {}
        process = subprocess.Popen(command, env=self._environment(node), start_new_session=True, **pipes)  # type: ignore[call-overload]
        agent = Agent(node, self.nodes.host(node), address, process, outcome)
        self.agents.append(agent)
        if self.nodes.several:
            agent.copy_lines(self.output)

    def _environment(self, node: int) -> dict[str, str]:
        num_ranks = self.nodes.most * self.nodes.ranks
        threads = self.options.threads or max(1, (os.cpu_count() or 1) // num_ranks)
        changes = {
            "OMP_NUM_THREADS": str(threads),
            "FROG_LAUNCHER_PID": str(os.getpid()),
            "FROG_LAUNCH_DIR": str(self.scratch),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # each attempt gets a store of its own, without stale keys
            **self.options.extra_env,
        }
        if self.nodes.several:
            changes["FROG_NODE_NAME"] = self.nodes.host(node)
        if self.network is not None:
            changes["GLOO_SOCKET_IFNAME"] = self.network.interface
        return child_env(**changes)

    @contextmanager
    def _take_signals(self) -> Iterator[None]:
        """While inside, SIGINT and SIGTERM go on to the agents, which have sessions of their own."""

        def forward(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)
            self._asked_at = self._asked_at or time.monotonic()
            self._comes_back.clear()
            for agent in self._running():
                agent.process.send_signal(signal.SIGTERM) if len(self.signals) == 1 else agent.kill()

        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # ---- watching ----------------------------------------------------------------------------------------------------

    def _running(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.process.poll() is None]

    def _tick(self) -> None:
        for agent in self.agents:
            self._hear(agent)
            if not agent.done and agent.process.poll() is not None:
                self._hear(agent)
                self._ended(agent)
        folder = self.journal.look_for_folder()
        if folder is not None and self.nodes.several:
            for agent in self.agents:
                self.output.open_log(agent.node, folder.node_log(agent.node))
        self._grant_wishes()
        self._look_for_hangs()
        self._bring_back()
        self._enforce_deadlines()

    def _hear(self, agent: Agent) -> None:
        """Pass on what an agent has told."""
        for event in agent.news():
            kind, unix_ns, time_s = event.pop("event"), event.pop("unix_ns"), event.pop("time_s", None)
            self.journal.tell(kind, unix_ns, **event)
            if kind == "exit":
                self.failures.append({**event, "time_s": time_s})
                if self.options.restarts:
                    print(f"{in_words(event)}", file=sys.stderr, flush=True)
            elif kind == "world":
                self._show(event)

    def _show(self, world: dict[str, Any]) -> None:
        """Once all nodes of an attempt have told their ranks, show the table of the world."""
        attempt = world["attempt"]
        if attempt not in self._shown and self.journal.folder is not None:
            keep_heartbeats(self.journal.folder, attempt - 1)
        worlds = self._shown.setdefault(attempt, [])
        worlds.append(world)
        if sum(len(told["ranks"]) for told in worlds) < world["world_size"]:
            return
        if attempt:
            print(f"started again (attempt {attempt}): a world of {world['world_size']}", file=sys.stderr, flush=True)
        if self.nodes.several:
            print(world_table(worlds, {n: self.nodes.host(n) for n in range(self.nodes.most)}), flush=True)

    def _look_for_hangs(self) -> None:
        folder = self.journal.folder
        if folder is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_S
        for agent in self._running():
            for hang in find_hangs(folder, dict(agent.watched), self.options.deadline_s, self.options.stuck_s):
                attempt = hang.heartbeat["attempt"]
                print(f"{hang}; it is killed", file=sys.stderr, flush=True)
                self.journal.tell(
                    "hang",
                    attempt=attempt,
                    rank=hang.rank,
                    pid=hang.pid,
                    kind=hang.kind,
                    waited_s=round(hang.waited_s, 3),
                    heartbeat=hang.heartbeat,
                )
                agent.watched.pop(hang.rank)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(hang.pid, signal.SIGKILL)

    def _grant_wishes(self) -> None:
        """Do what a rank asks for: faults of whole nodes, which no rank can bring about by itself."""
        for path in (self.scratch / "wishes").glob("*.json"):
            done = path.with_suffix(".done")
            if done.exists():
                continue
            wish = json.loads(path.read_text())
            if wish["act"] == "kill_node":
                for agent in self._running():
                    if agent.node == wish["node"]:
                        agent.kill()
            elif self.network is not None:
                {"cut": self.network.cut, "heal": self.network.heal}[wish["act"]](wish["node"])
            done.touch()

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _ended(self, agent: Agent) -> None:
        """An agent has ended: as it should, failed, or gone with its node."""
        code = agent.process.returncode
        agent.finish()
        self.journal.tell("node", node=agent.node, host=agent.host, code=code)
        if code < 0 and self._asked_at is None:
            self.lost[agent.host] = -code
        if code < 0 and self._asked_at is None and self._returns < self.options.restarts and self.nodes.several:
            self._returns += 1
            agent.excused = True
            self._comes_back[agent.node] = time.monotonic() + (self.options.repair_s if self.nodes.elastic else 0)
            print(f"{agent.host} has gone ({signal.Signals(-code).name})", file=sys.stderr, flush=True)
        elif code != 0:
            self._failed_at = self._failed_at or time.monotonic()

    def _bring_back(self) -> None:
        for node, at in list(self._comes_back.items()):
            if not self._running() or self._asked_at is not None:  # nobody is left to come back to
                self._comes_back.pop(node)
            elif time.monotonic() >= at:
                self._comes_back.pop(node)
                self.journal.tell("return", node=node, host=self.nodes.host(node))
                print(f"{self.nodes.host(node)} comes back", file=sys.stderr, flush=True)
                self._start(node)

    def _enforce_deadlines(self) -> None:
        """After a failure or a wish to stop: ask those who stay, then make them."""
        now = time.monotonic()
        if self._asked_at is None and self._failed_at is not None and now - self._failed_at > _PATIENCE_S:
            self._asked_at = now
            for agent in self._running():
                agent.process.send_signal(signal.SIGTERM)
        if any(agent.process.poll() == 0 for agent in self.agents):
            self._finished_at = self._finished_at or now
            for agent in self._running():
                # It came back when the others had already finished, or its network is cut.
                if not agent.pids or now - self._finished_at > _PATIENCE_S:
                    agent.excused = True
                    agent.kill()
        if self._asked_at is not None and now - self._asked_at > _GRACE_S:
            for agent in self._running():
                agent.kill()

    def _error(self) -> LaunchError | None:
        """What the world failed of, if the agents that count did not all end with 0."""
        codes = [agent.process.returncode for agent in self.agents if not agent.excused]
        if codes and not any(codes):
            return None
        last = max((failure["attempt"] for failure in self.failures), default=0)
        return world_error([failure for failure in self.failures if failure["attempt"] == last], self.lost, codes)
