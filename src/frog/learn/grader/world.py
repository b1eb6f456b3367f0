"""The judge's side of a world: start the learner's processes, match their communication, watch and end them."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from frog.core.env import child_env
from frog.core.files import socket_name
from frog.launch.resource_limits import (
    CHECK_INTERVAL_S,
    MOST_OUTPUT_BYTES,
    Breach,
    ResourceMonitor,
    end_descendants,
    remove_shared_memory,
)
from frog.launch.torchrun.forkserver import ForkedRank, ForkServer
from frog.learn.grader.codec import Frames, NotPlain, pack
from frog.learn.grader.drawing import draw
from frog.learn.grader.gate import Gate, Operation
from frog.learn.grader.outcome import Call, Failure, World

_KINDS = {"SystemExit": "exited", "MemoryError": "too-much-memory", "SyntaxError": "not-python"}
"""Exceptions that have a misconception id of their own."""

_VIOLATIONS = {"looked-it-up", "outside", "patched", "too-many-processes", "missing-function", "closed-output"}
"""Violations that a rank's own process detects."""

_GRACE_S = 1.0
_KEPT_OUTPUT = 16 << 10
_MOST_SENDING_S = 20.0
_MOST_READS = 64
"""Limit on reads of a socket's pending data, of one MiB each."""
_MOST_OPERATIONS = 10_000
"""Limit per rank in one world."""


@dataclass(frozen=True)
class Task:
    """The task of a world."""

    size: int
    case: Any
    work: str
    held: int | None
    env: Sequence[Mapping[str, str]]
    """Environment variables for each rank."""
    join: bool
    seconds: float
    folder: Path
    """The folder with the learner's files."""
    files: Mapping[str, bytes]
    functions: Sequence[str]
    ranks: bytes
    """Content of the exercise's ranks.py."""
    labs: Path


@dataclass
class _Rank:
    """The judge's view of one process."""

    process: ForkedRank | subprocess.Popen[bytes]
    line: socket.socket | None = None
    frames: Frames = field(default_factory=Frames)
    output: bytearray = field(default_factory=bytearray)
    num_output_bytes: int = 0
    prints: bool = False
    """True if the judge reads the process's output."""
    is_ready: bool = False
    value: Any = None
    ended: str = ""
    waited: set[int] = field(default_factory=set)
    overwritten: set[int] = field(default_factory=set)


def run_world(task: Task, server: ForkServer | None, scratch: Path) -> World:
    """Run a task in `task.size` processes until all have returned or it is certain that they will not."""
    return _Running(task, server, scratch).run()


class _Running:
    """A running world."""

    def __init__(self, task: Task, server: ForkServer | None, scratch: Path) -> None:
        self._task, self._server, self._scratch = task, server, scratch
        self._gate = Gate(task.size)
        self._ranks: list[_Rank] = []
        self._failure: Failure | None = None
        self._errors: dict[int, Failure] = {}
        """The ranks' exceptions, in order of arrival."""
        self._doomed = math.inf
        """Time since which a rank is known to wait forever; the other ranks may run until they stop."""
        self._selector = selectors.DefaultSelector()
        self._token = secrets.token_hex(16)
        self._rendezvous = scratch.with_name(f"{scratch.name}-rdzv")

    def run(self) -> World:
        self._rendezvous.mkdir()
        try:
            address = self._rendezvous / "sock"
            with socket.socket(socket.AF_UNIX) as listener:
                with socket_name(address) as name:
                    listener.bind(name)
                listener.listen()
                self._selector.register(listener, selectors.EVENT_READ, self._accept)
                self._start(str(address))
                self._watch()
        finally:
            self._end()
        return self._world()

    # ---- start and end -----------------------------------------------------------------------------------------------

    def _start(self, address: str) -> None:
        for rank in range(self._task.size):
            words = ["-m", "frog.learn.grader.grader_rank", address, str(rank), self._token]
            env = child_env()
            forked = self._server.fork([sys.executable, "-u", *words], env) if self._server is not None else None
            alone = [sys.executable, "-P", "-u", *words]  # -P: do not import from the current directory
            self._ranks.append(_Rank(forked or subprocess.Popen(alone, env=env, start_new_session=True)))
        self._monitor = ResourceMonitor([rank.process.pid for rank in self._ranks], self._task.seconds, self._scratch)

    def _end(self) -> None:
        for rank in self._ranks:
            if rank.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.process.pid, 9)
        for rank in self._ranks:
            rank.process.wait()
            if rank.line is not None:
                rank.line.close()
        for _ in range(_MOST_READS):  # read the remaining output
            if not [key.data(key.fileobj) for key, _ in self._selector.select(0)]:
                break
        end_descendants(keep=[self._server.pid] if self._server is not None else [])
        remove_shared_memory([rank.process.pid for rank in self._ranks])
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        shutil.rmtree(self._rendezvous, ignore_errors=True)

    def _world(self) -> World:
        calls = [
            [
                Call(**vars(operation), waited=number in rank.waited, overwritten=number in rank.overwritten)
                for number, operation in enumerate(state.operations)
            ]
            for rank, state in zip(self._ranks, self._gate.ranks, strict=True)
        ]
        output = [bytes(rank.output).decode(errors="replace") for rank in self._ranks]
        values = [rank.value for rank in self._ranks]
        return World(self._task.size, self._scratch, values, output, calls, self._failure, draw(self._gate))

    # ---- events ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        looked = -math.inf
        while self._failure is None and not all(rank.ended for rank in self._ranks):
            for key, _ in self._selector.select(CHECK_INTERVAL_S):
                key.data(key.fileobj)
                if self._failure is not None:
                    return
            self._judge_ends()
            if self._doomed < math.inf:
                self._release()
            if self._failure is None and time.monotonic() - looked > CHECK_INTERVAL_S:
                looked = time.monotonic()
                ended = {number for number, rank in enumerate(self._ranks) if rank.process.poll() is not None}
                breach = self._monitor.check(ended, {number for number, rank in enumerate(self._ranks) if rank.ended})
                if breach is not None:
                    self._breach(breach)

    def _judge_ends(self) -> None:
        """Explain why ranks ended early, after reading all pending messages: another rank may be the cause.

        gloo aborts a process that receives more than its buffer holds, and the other ranks' connections to it break.
        """
        gone = [number for number, rank in enumerate(self._ranks) if not rank.ended and rank.process.poll() is not None]
        if gone or self._errors:
            for number in range(self._task.size):
                self._drain(number)
        for number in gone:
            if not self._ranks[number].ended and self._failure is None:
                self._handle_exit(number)
        for number, failure in self._errors.items():
            if self._failure is None:
                self._gate.finish(number, self._ranks[number].ended)
                self._failure = failure

    def _drain(self, number: int) -> None:
        """Read everything that a rank has already sent."""
        line = self._ranks[number].line
        for _ in range(_MOST_READS):
            if line is None or self._ranks[number].ended or self._failure is not None:
                return
            try:
                if not (data := line.recv(1 << 20)):
                    return
            except OSError:
                return
            self._feed(number, data)

    def _accept(self, listener: socket.socket) -> None:
        """Accept a connection; its first frame identifies the rank."""
        connection, _ = listener.accept()
        connection.setblocking(False)
        frames = Frames()

        def first(_: Any) -> None:
            with contextlib.suppress(BlockingIOError, NotPlain):
                data = connection.recv(1 << 16)
                said = next(iter(frames.feed(data)), None) if data else None
                if isinstance(said, dict) and self._is_awaited(said):
                    self._selector.unregister(connection)
                    self._recognize(connection, int(said["rank"]), said["type"])
                elif said is not None or not data:
                    self._selector.unregister(connection)
                    connection.close()

        self._selector.register(connection, selectors.EVENT_READ, first)

    def _is_awaited(self, said: dict[str, Any]) -> bool:
        """Return True if a first frame is from a rank that has not connected yet."""
        if said.get("token") != self._token or said.get("rank") not in range(self._task.size):
            return False
        rank = self._ranks[said["rank"]]
        return not rank.prints if said.get("type") == "output" else rank.line is None

    def _recognize(self, connection: socket.socket, number: int, kind: str) -> None:
        rank = self._ranks[number]
        if kind == "output":
            rank.prints = True
            self._selector.register(connection, selectors.EVENT_READ, lambda _: self._print(number, connection))
            return
        rank.line = connection
        task = self._task
        self._say(
            number,
            {
                "scratch": str(self._scratch),
                "folder": str(task.folder),
                "files": dict(task.files),
                "functions": list(task.functions),
                "join": task.join,
                "store": str(self._rendezvous / "store"),
                "size": task.size,
                "held": task.held,
                "ranks": task.ranks,
                "work": task.work,
                "env": dict(task.env[number]),
                "case": task.case,
                "bounds": [str(task.labs), str(self._scratch)],
            },
        )
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._read(number))

    def _print(self, number: int, connection: socket.socket) -> None:
        rank = self._ranks[number]
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
            return
        self._monitor.last_activity_s = time.monotonic()
        rank.num_output_bytes += len(data)
        rank.output = (rank.output + data)[-_KEPT_OUTPUT:]
        if rank.num_output_bytes > MOST_OUTPUT_BYTES:
            self._breach(
                Breach("too-much-output", f"rank {number} printed more than {MOST_OUTPUT_BYTES >> 20} MiB.", number)
            )

    def _read(self, number: int) -> None:
        line = self._ranks[number].line
        assert line is not None
        try:
            data = line.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(line)
            return
        self._feed(number, data)

    def _feed(self, number: int, data: bytes) -> None:
        self._monitor.last_activity_s = time.monotonic()
        try:
            for said in self._ranks[number].frames.feed(data):
                if self._failure is None:
                    self._handle_message(number, said)
        except (NotPlain, msgspec.ValidationError, KeyError, TypeError, ValueError, AttributeError):
            self._fail("patched", f"rank {number} sent the grader an unexpected message.", number)

    def _say(self, number: int, message: dict[str, Any]) -> None:
        line = self._ranks[number].line
        assert line is not None
        line.settimeout(_MOST_SENDING_S)
        with contextlib.suppress(OSError):  # the rank has ended or does not listen; other code handles both
            line.sendall(pack(message))
        line.setblocking(False)

    # ---- messages from ranks -----------------------------------------------------------------------------------------

    def _handle_message(self, number: int, said: dict[str, Any]) -> None:
        rank, kind = self._ranks[number], said["type"]
        if kind == "ready":
            _require(not rank.is_ready)
            rank.is_ready = True
            self._monitor.began[number] = float(said["seconds"])
            if all(other.is_ready for other in self._ranks):
                for other in range(self._task.size):
                    self._say(other, {})
        elif kind == "enter":
            operation = msgspec.convert(said["operation"], Operation)
            _require(operation.is_message or set(operation.group) <= set(range(self._task.size)))
            self._gate.enter(number, operation)
            if len(self._gate.ranks[number].operations) > _MOST_OPERATIONS:
                self._fail("never-ends", f"rank {number} called more than {_MOST_OPERATIONS} operations.", number)
        elif kind == "wait":
            _require(said["number"] in range(len(self._gate.ranks[number].operations)))
            rank.waited.add(said["number"])
            rank.overwritten |= {said["number"]} if said.get("overwritten") is True else set()
            self._gate.wait(number, said["number"])
        elif kind == "violation":
            _require(said["id"] in _VIOLATIONS)
            self._fail(said["id"], f"On rank {number}: {said['seen']}", number)
        elif kind == "error":
            rank.ended, self._errors[number] = f"failed with {said['name']}", _raised(number, said)
        elif kind == "result":
            rank.value, rank.ended = said["value"], "returned"
            self._gate.finish(number, "returned")
        self._release()

    def _release(self) -> None:
        """Release ranks whose partners have arrived, the delayed one last; detect operations that can never match."""
        if self._failure is not None:
            return
        free = [] if self._gate.mismatch else self._gate.release()
        for number, sender in sorted(free, key=lambda pair: pair[0] == self._task.held):
            self._say(number, {"from": sender})
        problem = self._gate.problem()
        self._doomed = min(self._doomed, time.monotonic()) if problem else math.inf
        if problem and (self._gate.mismatch or self._gate.all_stopped or time.monotonic() > self._doomed + _GRACE_S):
            self._fail(problem.id, problem.observed, problem.ranks[0], drawing=draw(self._gate))

    def _handle_exit(self, number: int) -> None:
        """Handle a process that ended without reporting a result."""
        rank = self._ranks[number]
        code = rank.process.poll()
        rank.ended = "gone"
        self._gate.finish(number, "ended")
        if not rank.is_ready:
            self._fail(
                "broken",
                f"rank {number} ended with {code} before it was ready:\n{rank.output.decode(errors='replace')}",
                number,
            )
        elif code is not None and code < 0:
            self._fail("crashed", f"signal {-code} ended rank {number}'s interpreter.", number)
        else:
            self._fail(
                "exited", f"rank {number}'s process ended with exit code {code} before the function returned.", number
            )

    def _breach(self, breach: Breach) -> None:
        picture = draw(self._gate, "sleeps" if breach.asleep else "is still running")
        self._fail(breach.id, breach.observed, breach.rank, drawing=picture if self._task.size > 1 else None)

    def _fail(self, kind: str, observed: str, rank: int, **more: Any) -> None:
        if self._failure is None:
            self._failure = Failure(kind, observed, rank, **more)


def _raised(number: int, said: dict[str, Any]) -> Failure:
    """Return the failure for an exception that a rank's code raised."""
    name, text, where = str(said["name"]), str(said["text"]), str(said["where"])
    kind = "too-many-files" if said.get("errno") in (errno.EMFILE, errno.EFBIG) else _KINDS.get(name, "raised")
    place = f" at {where}" if where else ""
    trace = "".join(f"\n    {line}" for line in said["trace"]) if len(said["trace"]) > 1 else ""
    observed = f"rank {number} raised {name}{place}: {text.strip() or 'no message'}{trace}"
    is_unsolved = name == "NotImplementedError" and "fill in" in text
    return Failure(kind, observed, number, where, is_unsolved=is_unsolved)


def _require(true: bool) -> None:
    """Raise ValueError unless true: only a forged message violates these conditions."""
    if not true:
        raise ValueError
