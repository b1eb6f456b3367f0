"""A session: copies of a peer's program, connected through the relay, and monitored until all have ended."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil

from frog.core.errors import UsageError
from frog.core.machine import free_port
from frog.core.terminal import printable_lines
from frog.launch.harness import Program, kill_tree
from frog.launch.resource_limits import MOST_OUTPUT_BYTES, ResourceMonitor
from frog.measure.peers.buffers import Array, Unreadable, read_buffer, write_buffer, write_calls
from frog.measure.peers.calls import make_inputs, result_count
from frog.measure.peers.observed import Breach, Observed, Plan, RankEnd
from frog.measure.peers.relay import Relay

FORMAT = 1
"""Version of the peers' interface: docs/measure/collectives.md."""
AFTER_FAULT_S = 3.0
"""Extra time beyond the peers' timeout, since a loaded machine is slower."""
_AFTER_FIRST_S = 3.0
"""Time for the other copies after one has failed."""
_COMPUTING_S = 20.0
_TURN_S = 0.01
_CHECK_INTERVAL_S = 0.2
"""Interval between checks of memory, processes and files."""
_GONE_S = 0.5
_MOST_QUOTED = 2000
_LOST = re.compile(r"^lost (\d{1,6})\s*$", re.MULTILINE)


def run_session(plan: Plan, command: Sequence[str], folder: Path, seed: int) -> Observed:
    """Run a plan in a new folder, which keeps all files, and return the observations.

    Raises:  UsageError if the command cannot be started.
    """
    inputs = _write_inputs(plan, folder, seed)
    with _Session(plan, command, folder) as session:
        session.run()
        left = session.left()
    return Observed(
        plan,
        inputs,
        [[_result(plan, folder, call, rank) for rank in range(plan.world)] for call in range(len(plan.calls))],
        [session.end(rank) for rank in range(plan.world)],
        dict(session.relay.sent),
        dict(session.relay.connections),
        (session.relay.last_at or 0.0) - (session.relay.first_at or 0.0),
        [
            (call, rank)
            for call in range(len(plan.calls))
            for rank in range(plan.world)
            if not _is_same(_path(folder, rank, call, "in"), inputs[call][rank])
        ],
        left,
        session.breach,
        session.fault_at_s,
    )


def is_late(now_s: float, ended: Iterable[tuple[int, float]], fault_at_s: float | None, timeout_s: float) -> bool:
    """True if a session has used up the time after a fault, or after a copy that failed by itself.

    ended: exit codes and times of the copies that have ended.
    """
    if fault_at_s is not None:
        return now_s > fault_at_s + timeout_s + AFTER_FAULT_S
    failed = [at_s for code, at_s in ended if code != 0]
    return bool(failed) and now_s > min(failed) + _AFTER_FIRST_S


def _path(folder: Path, rank: int, call: int, suffix: str) -> Path:
    return folder / f"rank_{rank}" / f"{call}.{suffix}"


def _write_inputs(plan: Plan, folder: Path, seed: int) -> list[list[Array]]:
    rng = np.random.default_rng([seed, plan.world])
    inputs = [make_inputs(call, plan.world, rng) for call in plan.calls]
    for rank in range(plan.world):
        lines = []
        (folder / f"rank_{rank}").mkdir(parents=True)
        for number, call in enumerate(plan.calls):
            paths = _path(folder, rank, number, "in"), _path(folder, rank, number, "out")
            write_buffer(paths[0], inputs[number][rank])
            lines.append((call.operation, call.root, *paths))
        write_calls(folder / f"rank_{rank}" / "calls.tsv", lines)
    return inputs


def _result(plan: Plan, folder: Path, number: int, rank: int) -> Array | Unreadable:
    call = plan.calls[number]
    return read_buffer(_path(folder, rank, number, "out"), call.dtype, result_count(call, rank, plan.world))


def _is_same(path: Path, values: Array) -> bool:
    result = read_buffer(path, values.dtype.name, values.size)
    return not isinstance(result, Unreadable) and result.tobytes() == values.tobytes()


class _Session:
    """The processes of a session and the links between them."""

    def __init__(self, plan: Plan, command: Sequence[str], folder: Path) -> None:
        self._plan, self._command, self._folder = plan, command, folder
        self._programs: list[Program] = []
        self._ended: dict[int, tuple[int, float]] = {}
        """Exit code and time of the copies that ended on their own."""
        self._ports: list[int] = []
        while len(self._ports) < plan.world:
            self._ports = list({*self._ports, free_port()})
        self.relay = Relay(self._ports, plan.shapes, plan.fault, self._is_alive, self._on_fault)
        self.breach: Breach | None = None
        self.fault_at_s: float | None = None

    def __enter__(self) -> _Session:
        with ExitStack() as stack:
            stack.callback(self.relay.close)
            self._start = time.monotonic()
            for rank in range(self._plan.world):
                self._programs.append(stack.enter_context(self._program(rank)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self._stack.close()

    def _program(self, rank: int) -> Program:
        world = range(self._plan.world)
        listen = f"127.0.0.1:{self._ports[rank]}"
        scratch = self._folder / f"rank_{rank}"
        env = {
            "PEER_FORMAT": str(FORMAT),
            "PEER_RANK": str(rank),
            "PEER_WORLD": str(self._plan.world),
            "PEER_LISTEN": listen,
            "PEER_ADDRESSES": ",".join(listen if j == rank else self.relay.address((rank, j)) for j in world),
            "PEER_CALLS": str(scratch / "calls.tsv"),
            "PEER_TIMEOUT_S": f"{self._plan.timeout_s:g}",
        }
        try:
            return Program(self._command, scratch, env)
        except OSError as error:
            raise UsageError(
                f"--peer: {self._command[0]} cannot be started: {error.strerror}",
                "the command that starts your program",
            ) from None

    def run(self) -> None:
        """Run until all copies have ended, a limit is exceeded, or the time is up."""
        pids = [program.process.pid for program in self._programs]
        began = dict.fromkeys(range(self._plan.world), 0.0)
        monitor = ResourceMonitor(pids, _COMPUTING_S, self._folder, began)
        next_check_s, moved = 0.0, 0
        while self._note_ends() < self._plan.world and not self._is_late() and self.breach is None:
            self.relay.turn(_TURN_S)
            now = time.monotonic()
            sent = self.relay.sent.total()
            if sent != moved or self.fault_at_s is not None:  # after a fault, another deadline applies
                moved, monitor.last_activity_s = sent, now
            if now > next_check_s:
                next_check_s = now + _CHECK_INTERVAL_S
                self.breach = self._exceeded_limit(monitor)
        self.relay.turn(0.0)

    def _exceeded_limit(self, monitor: ResourceMonitor) -> Breach | None:
        for rank in range(self._plan.world):
            if self._log(rank).stat().st_size > MOST_OUTPUT_BYTES:
                return Breach("too-much-output", f"rank {rank} printed more than {MOST_OUTPUT_BYTES >> 20} MiB.")
        breach = monitor.check(set(self._ended))
        return None if breach is None else Breach(breach.id, breach.observed)

    def _note_ends(self) -> int:
        for rank, program in enumerate(self._programs):
            if rank not in self._ended and (code := program.process.poll()) is not None:
                self._ended[rank] = code, self._now_s()
        return len(self._ended)

    def _is_late(self) -> bool:
        """True if the remaining copies have used up the time that they get after a failure."""
        return is_late(self._now_s(), self._ended.values(), self.fault_at_s, self._plan.timeout_s)

    def _on_fault(self) -> None:
        fault = self._plan.fault
        self.fault_at_s = self._now_s()
        if fault is not None and fault.kind == "kill":
            with contextlib.suppress(psutil.NoSuchProcess):
                kill_tree(self._programs[fault.pair[0]].process)

    def _is_alive(self, rank: int) -> bool:
        return rank < len(self._programs) and self._programs[rank].process.poll() is None

    def _now_s(self) -> float:
        return time.monotonic() - self._start

    def left(self) -> list[int]:
        """Return the ranks that ended on their own and left running processes behind."""
        return [rank for rank in self._ended if not self._programs[rank].all_gone(_GONE_S)]

    def end(self, rank: int) -> RankEnd:
        """Return how a rank ended."""
        output = printable_lines(self._programs[rank].output[-_MOST_QUOTED:])
        code, at_s = self._ended.get(rank, (None, self._now_s()))
        lost = _LOST.search(output)
        return RankEnd(code, at_s, int(lost[1]) if lost else None, output)

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank_{rank}" / "output.txt"
