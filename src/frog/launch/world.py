"""A world on this machine: starts and watches one torchrun agent per (simulated) node, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from frog.core.env import MAY_MEET, SURVIVES, check_start_method
from frog.core.errors import FrogError, LaunchError, UsageError, signal_code, signal_name
from frog.core.files import scratch_folder
from frog.core.machine import PROCESS_BYTES, check_memory
from frog.core.processes import NOT_MET, kill_group
from frog.core.runs.heartbeat import read_heartbeat
from frog.core.runs.launch_request import LaunchRequest
from frog.core.runs.outcome import Failure, describe_failure, final_failures, world_error
from frog.core.schema import read_typed
from frog.core.terminal import terminal_columns, wrapped_lines
from frog.launch.launch_record import Journal, RecordedProgram
from frog.launch.lifecycle import Lifecycle, Limits, Repairs, State
from frog.launch.node_agents import Agent, NodeOutput, Options, Starter
from frog.launch.nodes import Nodes, world_table
from frog.launch.printed_errors import with_errors
from frog.launch.program import can_be_joined, can_resume, parse_program
from frog.launch.stalls import StallWatch
from frog.launch.watchdog import find_hangs

_LOOK_S = 0.5
"""Interval between two checks of the heartbeats."""


def run_world(nodes: Nodes | int, program: Sequence[str], options: Options | None = None) -> int:
    """Run `program` on every rank of a world under torchrun; return the exit code of the world.

    program: a frog command that runs on ranks (`train RUN.toml ...`), a Python script, a module (`-m package`), or any
    command, with its arguments.
    nodes: an integer means that many ranks on one node.

    Raises:  UsageError if there is nothing to run; LaunchError, with the error of the rank that failed first.
    """
    if isinstance(nodes, int):
        if nodes < 1:
            raise UsageError(f"--nproc {nodes}: a world needs at least one rank")
        nodes = Nodes(1, 1, nodes)
    num_ranks = nodes.most * nodes.ranks
    check_memory(num_ranks * PROCESS_BYTES, f"a world of {num_ranks} ranks", "use fewer ranks")
    check_start_method()
    parsed, options = parse_program(program), options or Options()
    if options.restarts and not can_resume(program):
        raise UsageError(f"{program[0]} cannot resume: it has no checkpoints", "omit --restarts")
    if options.replace and not can_be_joined(program):
        raise UsageError(f"{program[0]} does not support joining ranks", "omit --replace")
    with scratch_folder("frog-run-") as scratch, ExitStack() as stack:
        network = None
        if options.network is not None:
            from frog.launch.network import Network

            network = stack.enter_context(Network(nodes.most, options.network))
        starter = Starter(nodes, parsed.target, options, scratch, network)
        recorded = None
        if options.runs is not None and parsed.kind != "frog":
            recorded = RecordedProgram.create(parsed, options.runs, starter.environment(0))
            starter.output = recorded.output
            if options.on_folder is not None and recorded.folder is not None:
                options.on_folder(recorded.folder.path)
        launch = _Launch(nodes, options, scratch, starter, recorded=recorded)
        stack.callback(launch.clean_up)
        return launch.run()


def run_and_answer(nodes: Nodes | int, program: Sequence[str], options: Options, answer: Callable[[Path], int]) -> int:
    """Run a program that is not Frog's, then call `answer` with its run folder, also if the program failed.

    Returns the program's exit code, or else what `answer` returns.

    Raises:  as `run_world`, after the answer: what the ranks recorded until then is worth one.
    """
    folders: list[Path] = []
    failed: FrogError | None = None
    try:
        code = run_world(nodes, program, replace(options, on_folder=folders.append))
    except FrogError as error:
        code, failed = error.exit_code, error
    said = answer(folders[0]) if folders else None
    if failed is not None:
        raise failed
    if code == 0 and said is None:
        raise LaunchError("the program ran, but nothing was recorded: no run folder", "a folder that you can write to")
    return code or said or 0


class _Launch:
    """One `frog run`, from the first agent's start to the last one's end."""

    def __init__(
        self,
        nodes: Nodes,
        options: Options,
        scratch: Path,
        starter: Starter,
        limits: Limits | None = None,
        recorded: RecordedProgram | None = None,
    ) -> None:
        self.nodes, self.options, self.scratch, self.starter = nodes, options, scratch, starter
        self.network = starter.network
        self.recorded = recorded
        """The run folder and output of a program that is not Frog's."""
        self.journal, self.output = Journal(scratch, recorded.folder if recorded else None), NodeOutput()
        self.agents: list[Agent] = []
        self.failures: list[Failure] = []
        self.signals: list[int] = []
        self.lost: dict[str, int] = {}
        """Signals that killed the agents of lost nodes that have not returned, by host."""
        self.unaware: list[str] = []
        """Hosts of the nodes that were stopped because their ranks did not fail after another node had failed."""
        self._shown: dict[int, list[dict[str, Any]]] = {}
        self.life = Lifecycle(limits or Limits())
        self.repairs = Repairs(
            nodes.elastic, options.repair_s, self.life.limits.repair_at_most_s, set(range(nodes.most))
        )
        self._next_look = 0.0
        self._stalls = StallWatch(self.journal, options)
        self._wait_until = time.monotonic() + self.life.limits.up_at_most_s
        self._failed_by_itself = False

    def run(self) -> int:
        """Start the nodes and wait until all have ended; return the exit code, or raise the world's error."""
        self.journal.record("launch", pid=os.getpid(), **self.starter.describe())
        if self.nodes.several:
            self.starter.start_store()
        with self._take_signals():
            for node in range(self.nodes.most):
                if not self.signals:
                    self._start(node)
            while self._running() or self.repairs:
                time.sleep(0.05)
                self._tick()
        self._tick()
        if self.recorded is not None:
            self.recorded.output.settle()
        error = self._error()
        code = 0
        if error is not None:
            code = signal_code(self.signals[0]) if self.signals else error.exit_code
        self.journal.record("end", code=code, network=self._network_figures())
        if self.recorded is not None:
            self.recorded.write_record(error, self._final_failures(), bool(self.signals))
        if error and not self.signals:
            raise error
        if error and self._failed_by_itself:
            print(wrapped_lines(f"error: {error}", terminal_columns(sys.stderr)), file=sys.stderr)
        return code

    def _network_figures(self) -> dict[str, Any] | None:
        """Return the figures of the nodes' links; None without links, or if the switch has died."""
        with contextlib.suppress(LaunchError):
            return self.network.describe() if self.network else None
        return None

    def clean_up(self) -> None:
        """Kill all remaining processes; there are none after a normal end."""
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.kill()
                agent.process.wait()
            agent.finish()
        self.starter.close()
        self.output.close()
        if self.recorded is not None:
            self.recorded.output.close()

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _start(self, node: int) -> None:
        agent = self.starter.start_agent(node)
        self.agents.append(agent)
        if self.signals:  # a signal arrived during the start
            agent.process.terminate()
        if self.nodes.several:
            agent.copy_lines(self.output)

    @contextmanager
    def _take_signals(self) -> Iterator[None]:
        """Forward SIGINT and SIGTERM to the agents, which have their own sessions, inside this block."""

        def forward(number: int, frame: FrameType | None) -> None:
            self._failed_by_itself = self._failed_by_itself or bool(self.failures and not self.signals)
            self.signals.append(number)
            self.life.stop(time.monotonic())
            self.repairs.cancel()
            first = len(self.signals) == 1
            if first and not self.failures and self._stalls.ask_before_stop(time.monotonic()):
                return
            for agent in self._running():
                agent.process.send_signal(signal.SIGTERM) if first else agent.kill()

        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _let_meet(self) -> None:
        """Let the agents start the rendezvous; in an elastic world, only when all running agents are up.

        Once the rendezvous starts, agents wait only 3 s for others, which is right for a world that shrinks later.
        """
        awaited = self.nodes.elastic and time.monotonic() < self._wait_until
        if not (awaited and any(not agent.is_up() for agent in self._running())):
            (self.scratch / MAY_MEET).touch()

    # ---- watching ----------------------------------------------------------------------------------------------------

    def _running(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.process.poll() is None]

    def _tick(self) -> None:
        for agent in self.agents:
            self._handle_reports(agent)
            if not agent.done and agent.process.poll() is not None:
                self._handle_reports(agent)
                self._ended(agent)
        self._let_meet()
        folder = self.journal.look_for_folder()
        if folder is not None and self.options.watch is not None:
            self.options.watch(folder.path)
        if folder is not None and self.nodes.several:
            for agent in self.agents:
                self.output.open_log(agent.node, folder.node_log(agent.node))
        if self.recorded is not None:
            self.recorded.sign()
        self._serve_requests()
        self._look_for_hangs()
        self._look_for_stalls()
        self._stop_asked()
        self._restart_lost_nodes()
        self._enforce_deadlines()

    def _handle_reports(self, agent: Agent) -> None:
        """Process an agent's new reports."""
        for event in agent.news():
            kind, unix_ns, time_s = event.pop("event"), event.pop("unix_ns"), event.pop("time_s", None)
            self.journal.record(kind, unix_ns, **event)
            if kind == "exit":
                self.failures.append({**event, "time_s": time_s, "unix_ns": unix_ns})
                if not self._survives_losses:
                    agent.watched.clear()
                if self.options.restarts or self._survives_losses:
                    print(f"{describe_failure(event)}", file=sys.stderr, flush=True)
            elif kind == "replace":
                words = f"rank {event['rank']} is replaced by process {event['pid']}"
                print(f"{words} ({event['number']} of {self.options.replace})", file=sys.stderr, flush=True)
            elif kind == "world":
                self._show(event)

    @property
    def _survives_losses(self) -> bool:
        """True if the run has announced that it continues when ranks are lost."""
        return (self.scratch / SURVIVES).exists()

    def _show(self, world: dict[str, Any]) -> None:
        """Print the table of the world once all nodes of an attempt have reported their ranks."""
        attempt = world["attempt"]
        worlds = self._shown.setdefault(attempt, [])
        worlds.append(world)
        if attempt < max(self._shown):  # a late report about a world that has already ended
            return
        if sum(len(report["ranks"]) for report in worlds) < world["world_size"]:
            return
        self.repairs.start_world({report["node"] for report in worlds})
        if attempt:
            print(f"restarted (attempt {attempt}): world size {world['world_size']}", file=sys.stderr, flush=True)
        if self.nodes.several:
            print(world_table(worlds, {n: self.nodes.host(n) for n in range(self.nodes.most)}), flush=True)

    def _look_for_hangs(self) -> None:
        folder = self.journal.folder
        if folder is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_S
        for agent in self._running():
            for hang in find_hangs(folder, dict(agent.watched), self.options.deadline_s, self.options.stuck_s):
                print(f"{hang}; killing it", file=sys.stderr, flush=True)
                self.journal.record(
                    "hang",
                    attempt=max(self._shown, default=0),  # the agents' count, which membership changes do not increase
                    rank=hang.rank,
                    pid=hang.pid,
                    kind=hang.kind,
                    waited_s=round(hang.waited_s, 3),
                    heartbeat=msgspec.to_builtins(hang.heartbeat),
                )
                agent.watched.pop(hang.rank)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(hang.pid, signal.SIGKILL)

    def _look_for_stalls(self) -> None:
        """End a program that is not Frog's if its ranks wait for each other."""
        attempt = max(self._shown, default=0)
        healthy = self.life.state is State.RUNNING and all(failure["attempt"] != attempt for failure in self.failures)
        if healthy and self._stalls.must_end(attempt, self._ranks_of(attempt), time.monotonic()):
            for agent in self._running():
                agent.kill_ranks()

    def _stop_asked(self) -> None:
        """End a world that a user stops, once its ranks have written what they know."""
        if self._stalls.may_stop(time.monotonic()):
            for agent in self._running():
                agent.process.send_signal(signal.SIGTERM)

    def _ranks_of(self, attempt: int) -> set[int]:
        return {rank for world in self._shown.get(attempt, []) for rank in world["ranks"]}

    def _serve_requests(self) -> None:
        """Handle the ranks' requests for actions that only the launcher can do."""
        for path in (self.scratch / "requests").glob("*.json"):
            done = path.with_suffix(".done")
            if done.exists():
                continue
            request = read_typed(path, LaunchRequest, error=LaunchError)
            if request.act == "kill_node":
                for agent in self._running():
                    if agent.node == request.node:
                        agent.kill()
            elif request.act == "end_rank":
                self._end_rank(request.pid)
            elif self.network is not None:
                {"cut": self.network.cut, "heal": self.network.heal}[request.act](request.node)
            done.touch()

    def _end_rank(self, pid: int | None) -> None:
        """Kill a rank that the others have continued without."""
        for agent in self._running():
            for rank in [rank for rank, own in agent.pids.items() if own == pid]:
                self.journal.record("left_out", attempt=max(self._shown, default=0), rank=rank, pid=pid)
                kill_group(agent.pids[rank])

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _ended(self, agent: Agent) -> None:
        """Handle the end of an agent: success, failure, or loss of its node."""
        code, unix_ns = agent.process.returncode, time.time_ns()
        agent.finish()
        self.journal.record("node", unix_ns, node=agent.node, host=agent.host, code=code)
        if code:
            agent.kill_ranks()
        if code == 0 or self.life.state is State.STOPPING:
            return
        if code < 0:
            self.lost[agent.host] = -code
        comes_back = self.nodes.several and self.repairs.returns < self.options.restarts
        healthy = sum(other.process.poll() in (None, 0) for other in self.agents)
        goes_on_without = healthy >= self.nodes.least
        survived = healthy > 0 and self._survives_losses
        if survived or (code < 0 and (comes_back or goes_on_without)) or (code == NOT_MET and goes_on_without):
            agent.excused = True
            how = f"was lost ({signal_name(-code)})" if code < 0 else "lost contact with the other nodes"
            print(f"{agent.host} {how}", file=sys.stderr, flush=True)
            if comes_back:
                self.repairs.go(agent.node, time.monotonic())
        else:
            self.life.node_failed(time.monotonic())

    def _restart_lost_nodes(self) -> None:
        if not self._running() or self.life.state is State.STOPPING:  # no world is left to return to
            self.repairs.cancel()
        for node in self.repairs.pop_returning(time.monotonic(), self._has_begun):
            self.lost.pop(self.nodes.host(node), None)
            self.journal.record("return", node=node, host=self.nodes.host(node))
            print(f"{self.nodes.host(node)} returns", file=sys.stderr, flush=True)
            self._start(node)

    def _has_begun(self) -> bool:
        """True if the ranks of the last world are running; earlier, they could not react to a stop signal."""
        if self.journal.folder is None:  # a program without heartbeats
            return True
        beat = read_heartbeat(self.journal.folder.heartbeat(0))
        return beat is not None and any(beat.pid in agent.pids.values() for agent in self._running())

    def _enforce_deadlines(self) -> None:
        """Ask the remaining agents to stop after a failure or a stop request, and kill them after their deadline."""
        now = time.monotonic()
        if self.life.patience_is_over(now):
            for agent in self._running():
                self.unaware.append(agent.host)
                agent.process.send_signal(signal.SIGTERM)
        if any(agent.process.poll() == 0 for agent in self.agents):
            self.life.node_finished(now)
        for agent in self._running():
            if self.life.is_superfluous(bool(agent.pids), agent.idle_s):
                agent.excused = True
                agent.kill()
            elif self.life.must_be_killed(now, agent.idle_s):
                agent.kill()

    def _error(self) -> LaunchError | None:
        """Return the world's error, unless all agents that count ended with 0."""
        codes = [agent.process.returncode for agent in self.agents if not agent.excused]
        if codes and not any(codes):
            return None
        if not self.lost and (hang := self._stalls.error(max(self._shown, default=0))):
            return hang
        return world_error(self._final_failures(), self.lost, codes, self.journal.folder, self.unaware)

    def _final_failures(self) -> list[Failure]:
        """Return the failures that ended the world, each with its rank's error if the program is not Frog's."""
        last = max(self._shown, default=0)
        failures = [failure for failure in self.failures if failure["attempt"] == last]
        if self._survives_losses:
            failures = final_failures(failures)
        if self.recorded is not None and failures:
            output, folder = self.recorded.output, self.recorded.folder
            failures = with_errors(failures, output.kept, folder)
        return failures
