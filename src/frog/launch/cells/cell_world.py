"""A world whose ranks stay alive between cells: starts it, runs a cell on its ranks, and ends it.

    world = CellWorld(WorldSettings(nproc=2))
    result = world.run("x = torch.ones(2)")          # a CellResult: per rank output, value, error, collectives
    world.stop()

The world survives whatever a cell does. A cell that hangs or is interrupted is ended on all its ranks: Python code by
SIGINT, a collective by closing its connections, and all ranks make the process group again. If a rank dies, or does not
react, the world is started again with the variables that could be kept.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Literal

import msgspec

from frog.core.env import child_env
from frog.core.errors import LaunchError, UsageError
from frog.core.files import socket_name
from frog.core.machine import PROCESS_BYTES, check_memory
from frog.core.processes import is_alive, kill_group
from frog.core.runs.outcome import name_ranks
from frog.launch.cells.cell_hangs import LOOK_S, HangWatch
from frog.launch.cells.cell_launcher import ERROR, WorldSettings
from frog.launch.cells.cell_places import cell_path
from frog.launch.cells.messages import Answer, CellError, Request, receive_answer, send

_START_S = 180.0
_REGROUP_S = 20.0
_SAVE_S = 60.0
_LOAD_S = 60.0
_STUCK_S = 3.0
_GET_S = 300.0
_END_S = 7.0
"""Time for the ranks to leave a cell that is ended. Those that do not are killed."""
_LEAVE_S, _STOP_S = 2.0, 10.0
_TICK_S = 0.1
_SHOW_S = 0.3
_MOST_OUTPUT = 200_000
"""Most characters of a rank's output that are shown."""

State = Literal["done", "failed", "interrupted", "hung", "died"]
Outputs = Mapping[int, str]


@dataclass
class RankResult:
    """What one rank did in a cell."""

    rank: int
    state: State
    output: str = ""
    answer: Answer | None = None


@dataclass
class CellResult:
    """What a cell did on its ranks."""

    number: int
    world_size: int
    ranks: dict[int, RankResult] = field(default_factory=dict)
    hang: str = ""
    notes: list[str] = field(default_factory=list)
    """What happened to the world, for people."""
    duration_s: float = 0.0

    @property
    def failed(self) -> bool:
        """True if the cell did not complete on one of its ranks."""
        return any(own.state != "done" for own in self.ranks.values())


class CellWorld:
    """A running world. Its methods block; Ctrl-C during `run` interrupts the cell, not the world."""

    def __init__(self, settings: WorldSettings) -> None:
        self.settings = settings
        self.last: CellResult | None = None
        """The last cell with collectives, if one had any."""
        self.names: dict[int, list[str]] = {}
        """The variables of each rank after its last cell."""
        self.on_status: Callable[[str], None] | None = None
        """Called with what the world does while its user waits for it, and with "" when it has done it."""
        self.device = "cpu"
        self.pids: dict[int, int] = {}
        self._root = Path(tempfile.mkdtemp(prefix="frog-world-"))
        (self._root / "cells").mkdir()
        self._owner = os.getpid()
        self._starts = self._number = self._epoch = 0
        self._connections: dict[int, Connection] = {}
        self._read_bytes: dict[int, int] = {}
        self._launcher: subprocess.Popen[bytes] | None = None
        self._interrupts = 0
        atexit.register(self.stop)

    # ---- start and stop ----------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True if all ranks are connected."""
        return len(self._connections) == self.settings.world_size

    @property
    def folder(self) -> Path:
        """The folder of this start of the world: its ranks' output, and what their observers write."""
        return self._root / f"world_{self._starts}"

    def start(self) -> None:
        """Start the ranks and wait until they have joined.

        Raises:  LaunchError; UsageError for invalid options; KeyboardInterrupt if the first start is interrupted.
        """
        size = self.settings.world_size
        check_memory(size * PROCESS_BYTES, f"a world of {size} ranks", "use fewer ranks")
        self._starts += 1
        self._epoch = 0
        (self.folder / "output").mkdir(parents=True)
        with self._take_interrupts():  # one between two lines would leave the launcher running
            if self._starts == 1:
                self._say(f"starting a world of {self.settings} ...")
            try:
                with _listen(self.folder / "socket") as listening:
                    self._start_launcher()
                    self._accept(listening)
            except BaseException:
                self._end_processes()
                raise
            finally:
                self._say("")

    def _say(self, status: str) -> None:
        if self.on_status is not None:
            self.on_status(status)

    def _start_launcher(self) -> None:
        command = [sys.executable, "-P", "-m", "frog.launch.cells.cell_launcher", str(self.folder)]
        with open(self.folder / "launcher.log", "wb") as log:
            self._launcher = subprocess.Popen(
                [*command, msgspec.json.encode(self.settings).decode()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_env(),
                start_new_session=True,
            )

    def _accept(self, listening: socket.socket) -> None:
        until_s, new = time.monotonic() + _START_S, []
        listening.settimeout(_TICK_S)
        while len(self._connections) < self.settings.world_size:
            assert self._launcher is not None
            if self._interrupts and self._starts == 1:  # later there are variables to restore
                raise KeyboardInterrupt
            if self._launcher.poll() is not None:
                raise LaunchError(f"the world did not start: {self._why_ended()}")
            if time.monotonic() > until_s:
                raise LaunchError(f"the world did not start in {_START_S:.0f} s", "a smaller world")
            with contextlib.suppress(TimeoutError):
                accepted, _ = listening.accept()
                accepted.setblocking(True)
                new.append(Connection(accepted.detach()))
            for connection in [each for each in new if each.poll(0)]:
                new.remove(connection)
                with contextlib.suppress(EOFError, OSError):  # the launcher ends too
                    hello = receive_answer(connection)
                    self._connections[hello.rank] = connection
                    self.pids[hello.rank], self.device = hello.pid, hello.device
        self._read_bytes = dict.fromkeys(self._connections, 0)
        for rank in self._connections:
            self._skip_output(rank)

    def _why_ended(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            error = msgspec.json.decode((self.folder / ERROR).read_bytes())
            return f"{error['what']}" + (f"\n  try: {error['hint']}" if error["hint"] else "")
        lines = (self.folder / "launcher.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its launcher ended"

    def stop(self) -> None:
        """End all processes of the world and remove its folder. Its variables are lost."""
        if os.getpid() != self._owner:  # a fork of the notebook's process
            return
        atexit.unregister(self.stop)
        self._end_processes()
        shutil.rmtree(self._root, ignore_errors=True)

    def _end_processes(self) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                send(connection, Request(act="exit"))
            connection.close()
        self._connections.clear()
        launcher, self._launcher = self._launcher, None
        if launcher is None:
            return
        until_s = time.monotonic() + _LEAVE_S
        while time.monotonic() < until_s and any(map(is_alive, self.pids.values())):
            time.sleep(0.02)
        for pid in filter(is_alive, self.pids.values()):
            kill_group(pid)
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if launcher.poll() is None:
                if number is not None:
                    launcher.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    launcher.wait(_STOP_S)
        self.pids.clear()

    # ---- cells -------------------------------------------------------------------------------------------------------

    def run(
        self,
        source: str,
        ranks: Sequence[int] | None = None,
        *,
        number: int | None = None,
        on_output: Callable[[Outputs], None] | None = None,
    ) -> CellResult:
        """Run a cell on ranks (default: all) and return what each did.

        number: of the cell, for places such as `cell 3, line 2`; default: counted.
        on_output: called with all output of each rank so far, when there is more.

        Raises:  UsageError for a rank outside the world; LaunchError if the world cannot be started again.
        """
        chosen = self._chosen(ranks)
        self._number = self._number + 1 if number is None else number
        path = self._write_cell(source)
        result = CellResult(self._number, self.settings.world_size)
        start = time.monotonic()
        with self._take_interrupts():
            if not self.is_running or not self._all_alive():
                self._start_again(result, "a rank had ended since the last cell")
            for rank in chosen:
                result.ranks[rank] = RankResult(rank, "died")
            _Run(self, result, path, on_output).follow()
        result.duration_s = time.monotonic() - start
        if self.last is None or any(own.answer is not None and own.answer.calls for own in result.ranks.values()):
            self.last = result
        return result

    def _chosen(self, ranks: Sequence[int] | None) -> list[int]:
        size = self.settings.world_size
        wrong = [rank for rank in ranks or () if not 0 <= rank < size]
        if wrong:
            raise UsageError(f"rank {wrong[0]}: the world has ranks 0 to {size - 1}", f"--world {wrong[0] + 1}")
        return sorted(set(ranks)) if ranks else list(range(size))

    def _write_cell(self, source: str) -> Path:
        path, again = cell_path(self._root, self._number), 2
        while path.exists():
            path, again = path.with_name(f"cell_{self._number}_{again}.py"), again + 1
        path.write_text(source, encoding="utf-8")
        return path

    def _all_alive(self) -> bool:
        """True if no connection has ended since the last cell."""
        return not wait(list(self._connections.values()), 0)

    @contextlib.contextmanager
    def _take_interrupts(self) -> Iterator[None]:
        """Count Ctrl-C in this block instead of raising KeyboardInterrupt, in the main thread."""
        self._interrupts = 0

        def note(number: int, frame: FrameType | None) -> None:
            self._interrupts += 1

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _send(self, ranks: Sequence[int] | Set[int], request: Request) -> set[int]:
        """Send a request; return the ranks that could be reached."""
        reached = set()
        for rank in ranks:
            with contextlib.suppress(OSError, KeyError):
                send(self._connections[rank], request)
                reached.add(rank)
        return reached

    def _receive(self, timeout_s: float) -> tuple[dict[int, Answer], set[int]]:
        """Return the answers that arrive within a time, and the ranks that have ended."""
        by_connection = {connection: rank for rank, connection in self._connections.items()}
        answers, gone = {}, set()
        for ready in wait(list(by_connection), timeout_s):
            assert isinstance(ready, Connection)
            rank = by_connection[ready]
            try:
                answers[rank] = receive_answer(ready)
            except (EOFError, OSError):
                ready.close()
                del self._connections[rank]
                gone.add(rank)
        return answers, gone

    def _ask(
        self, requests: Mapping[int, Request], timeout_s: float, optional: Set[int] = frozenset()
    ) -> dict[int, Answer]:
        """Send each rank its request, and return the answers of those that gave one in time.

        optional: ranks that may be unable to answer, and get little time after the others have.
        """
        number = next(iter(requests.values())).number if requests else 0
        awaited = {rank for rank, request in requests.items() if self._send([rank], request)}
        answered: dict[int, Answer] = {}
        until_s = time.monotonic() + timeout_s
        while awaited and time.monotonic() < until_s:
            answers, gone = self._receive(_TICK_S)
            answered |= {rank: answer for rank, answer in answers.items() if answer.number == number}
            awaited -= gone | answered.keys()
            if awaited <= optional:
                until_s = min(until_s, time.monotonic() + _STUCK_S)
                optional = frozenset()
        return answered

    def get(self, expression: str, ranks: Sequence[int] | None = None) -> dict[int, object]:
        """Return the value of an expression on ranks (default: all), by rank.

        Raises:  UsageError if a rank cannot evaluate it or send its value; LaunchError if a rank is gone.
        """
        chosen = self._chosen(ranks)
        if not self.is_running:
            raise UsageError("no world is running", "%ranks --world 2")
        paths = {rank: self.folder / f"value_{rank}.pt" for rank in chosen}
        requests = {
            rank: Request(act="get", number=-2, name=expression, path=str(path)) for rank, path in paths.items()
        }
        answers = self._ask(requests, _GET_S)
        if missing := set(chosen) - answers.keys():
            raise LaunchError(f"{name_ranks(sorted(missing))} did not answer")
        for rank, answer in answers.items():
            if answer.error is not None:
                raise UsageError(f"rank {rank}: {answer.error.type}: {answer.error.message}")
        return {rank: _load_value(path) for rank, path in paths.items()}

    # ---- output ------------------------------------------------------------------------------------------------------

    def _output_file(self, rank: int) -> Path:
        return self.folder / "output" / f"rank_{rank}"

    def _skip_output(self, rank: int) -> None:
        """Do not show what a rank has written until now: warnings of torch about closed connections."""
        with contextlib.suppress(OSError):
            self._read_bytes[rank] = self._output_file(rank).stat().st_size

    def _read_output(self, rank: int, end: int | None = None) -> str:
        """Return a rank's new output, up to a position in its file."""
        start = self._read_bytes.get(rank, 0)
        with contextlib.suppress(OSError), open(self._output_file(rank), "rb") as file:
            file.seek(start)
            data = file.read() if end is None else file.read(max(0, end - start))
            self._read_bytes[rank] = start + len(data)
            return data.decode(errors="replace")
        return ""

    # ---- repairs -----------------------------------------------------------------------------------------------------

    def _regroup(self, result: CellResult, why: str) -> None:
        """Make the process group again on all ranks; start the world again if that fails."""
        self._epoch += 1
        requests = {rank: Request(act="regroup", number=self._epoch) for rank in self._connections}
        answers = self._ask(requests, _REGROUP_S)
        for rank in self._connections:
            self._skip_output(rank)
        if len(answers) < self.settings.world_size or any(answer.error for answer in answers.values()):
            self._start_again(result, "the process group could not be made again")
            return
        lost = sorted({name for answer in answers.values() for name in answer.lost})
        again = f"; create again what uses the old one: {', '.join(lost)}" if lost else ""
        result.notes.append(f"{why}: the ranks keep their variables, and have a new process group{again}")

    def _start_again(self, result: CellResult, why: str, stuck: Set[int] = frozenset()) -> None:
        """Start the world again with the variables that can be kept. stuck: ranks whose main thread does not react."""
        names, first = dict(self.names), not self._starts
        if first:
            self.start()
            return
        self._say(f"{why}: starting the world again ...")
        kept = self._root / f"kept_{self._starts}"
        kept.mkdir()
        requests = {
            rank: Request(act="save", number=-1, path=str(kept / f"rank_{rank}.pt"), at_once=rank in stuck)
            for rank in self._connections
        }
        saved = self._ask(requests, _SAVE_S, optional=stuck)
        self._end_processes()
        ended = self._why_ended() if not self._connections and why.endswith("ended") else ""
        self.start()
        code = max((answer.code for answer in saved.values()), key=len, default=[])
        loads = {
            rank: Request(
                act="load",
                number=-1,
                path=str(kept / f"rank_{rank}.pt"),
                code=saved[rank].code if rank in saved else code,
            )
            for rank in self._connections
        }
        loaded = self._ask(loads, _LOAD_S)
        shutil.rmtree(kept, ignore_errors=True)
        result.notes.append(f"{ended or why}: the world was started again")
        result.notes += _kept_and_lost(names, saved, loaded)
        self.names = {rank: answer.names for rank, answer in loaded.items()}


class _Run:
    """One cell while it runs."""

    def __init__(
        self, world: CellWorld, result: CellResult, path: Path, on_output: Callable[[Outputs], None] | None
    ) -> None:
        self.world, self.result, self.path, self.on_output = world, result, path, on_output
        self.waiting = set(result.ranks)
        self.died: set[int] = set()
        self._request = Request(act="run", number=world._starts * 100_000 + world._number, path=str(path))
        self._shown_at = 0.0
        self._shown = str(dict.fromkeys(result.ranks, ""))

    def follow(self) -> None:
        """Run the cell until its end, and repair the world if necessary."""
        world, result = self.world, self.result
        reached = world._send(self.waiting, self._request)
        self.died |= self.waiting - reached
        self.waiting = reached
        watch = HangWatch(world.folder, set(result.ranks), world.settings.world_size)
        next_look = time.monotonic() + LOOK_S
        while self.waiting and not self.died and not world._interrupts:
            self._take(_TICK_S)
            if self.waiting and time.monotonic() > next_look:
                next_look = time.monotonic() + LOOK_S
                hang = watch.look(self._finished(), time.monotonic())
                if hang is not None:
                    result.hang = hang.text.replace(f" of group {100 * world._epoch} ", " ")
                    break
        was_cut = bool(self.waiting)
        hung = set(self.waiting) if result.hang else set()
        if self.waiting:
            self._end(by_hang=bool(hung))
        for rank in hung:
            if result.ranks[rank].state in ("failed", "interrupted"):
                result.ranks[rank].state = "hung"
        self._show(last=True)
        self._repair(was_cut)

    def _finished(self) -> dict[int, str]:
        """Return the ranks that have ended the cell, and how."""
        ends = {rank: own.answer.error if own.answer else None for rank, own in self.result.ranks.items()}
        done = {rank: error for rank, error in ends.items() if rank not in self.waiting}
        return {
            rank: "has finished the cell" if error is None else f"failed with {error.type}{_at(error)}"
            for rank, error in done.items()
        }

    def _take(self, timeout_s: float) -> None:
        """Take the answers that arrive."""
        answers, gone = self.world._receive(timeout_s)
        for rank, answer in answers.items():
            if answer.number == self._request.number and rank in self.waiting:
                own = self.result.ranks[rank]
                own.answer = answer
                own.state = "done" if answer.error is None else "failed"
                if answer.error is not None and answer.error.is_interrupt:
                    own.state = "interrupted"
                self.waiting.discard(rank)
                self.world.names[rank] = answer.names
        self.died |= gone
        self.waiting -= gone
        self._show()

    def _show(self, last: bool = False) -> None:
        """Read new output, and pass all output on."""
        if not last and time.monotonic() - self._shown_at < _SHOW_S:
            return
        self._shown_at = time.monotonic()
        for rank, own in self.result.ranks.items():
            own.output = _bounded(own.output + self.world._read_output(rank))
        outputs = {rank: own.output for rank, own in self.result.ranks.items()}
        if self.on_output is not None and not last and str(outputs) != self._shown:
            self._shown = str(outputs)
            self.on_output(outputs)

    def _end(self, *, by_hang: bool) -> None:
        """End the cell on the ranks that are still in it: at first gently, then by closing their connections."""
        self._show(last=True)
        world = self.world
        abort, all_connections = Request(act="abort"), Request(act="abort", store=True)
        interrupt = Request(act="interrupt")
        steps = [(0.0, [abort if by_hang else interrupt]), (0.7, [abort]), (1.4, [all_connections, interrupt])]
        steps += [(second, [all_connections, interrupt]) for second in (2.5, 4.0, 6.0)]
        start, asked = time.monotonic(), world._interrupts
        while self.waiting and time.monotonic() < start + _END_S and world._interrupts <= asked + 1:
            while steps and time.monotonic() >= start + steps[0][0]:
                for request in steps.pop(0)[1]:
                    world._send(set(self.waiting), request)
            self._take(_TICK_S)
        for rank in self.result.ranks:
            world._skip_output(rank)

    def _repair(self, was_cut: bool) -> None:
        """Make the world whole again after the cell."""
        world, result = self.world, self.result
        if self.died:
            for rank in self.died & result.ranks.keys():
                result.ranks[rank].state = "died"
            world._start_again(result, f"{name_ranks(sorted(self.died))} ended", stuck=self.waiting)
        elif self.waiting:
            for rank in self.waiting:
                result.ranks[rank].state = "hung" if result.hang else "interrupted"
            why = f"{name_ranks(sorted(self.waiting))} did not react"
            world._start_again(result, why, stuck=self.waiting)
        elif was_cut:
            world._regroup(result, "the cell was ended" if result.hang else "interrupted")
        elif why := self._unequal():
            world._regroup(result, why)

    def _unequal(self) -> str:
        """Return why the process group can no longer be used: ranks have entered different numbers of collectives."""
        answers = {rank: own.answer for rank, own in self.result.ranks.items() if own.answer is not None}
        if not all(answer.in_group for answer in answers.values()):
            return "a rank has destroyed its process group"
        counts: dict[str, dict[int, int]] = {}
        members: dict[str, set[int]] = {}
        for rank, answer in answers.items():
            for call in answer.calls:
                if not call.p2p:
                    counts.setdefault(call.group, {}).setdefault(rank, 0)
                    counts[call.group][rank] += 1
                    members.setdefault(call.group, set()).update(call.members)
        for group, by_rank in counts.items():
            awaited = members[group] or set(range(self.result.world_size))
            if len({by_rank.get(rank, 0) for rank in awaited | by_rank.keys()}) > 1:
                numbers = ", ".join(f"rank {rank} {by_rank.get(rank, 0)}" for rank in sorted(awaited))
                return f"the ranks entered different numbers of collectives ({numbers})"
        return ""


def _at(error: CellError) -> str:
    places = [line for line in error.lines if not line.startswith(" ")]
    return f" at {places[-1]}" if places else ""


def _kept_and_lost(
    names: Mapping[int, Sequence[str]], saved: Mapping[int, Answer], loaded: Mapping[int, Answer]
) -> list[str]:
    """Say which variables the new world has, and which it lost."""
    kept = {rank: sorted(answer.names) for rank, answer in loaded.items()}
    notes = []
    by_names: dict[tuple[str, ...], list[int]] = {}
    for rank, own in sorted(kept.items()):
        by_names.setdefault(tuple(own), []).append(rank)
    notes += [f"kept on {name_ranks(ranks)}: {', '.join(own)}" for own, ranks in by_names.items() if own]
    by_loss: dict[str, list[int]] = {}
    for rank in sorted(names):
        reasons = [reason for answers in (saved, loaded) if rank in answers for reason in answers[rank].lost]
        named = {reason.split(" (")[0] for reason in reasons}
        gone = [name for name in names[rank] if name not in kept.get(rank, []) and name not in named]
        if losses := ", ".join([*gone, *reasons]):
            by_loss.setdefault(losses, []).append(rank)
    notes += [f"lost on {name_ranks(ranks)}: {losses}" for losses, ranks in by_loss.items()]
    return notes


@contextlib.contextmanager
def _listen(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket, which ranks of every simulated node reach, also behind a slow network."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        with socket_name(path) as name:
            listening.bind(name)
        listening.listen(128)
        yield listening


def _bounded(text: str) -> str:
    if len(text) <= _MOST_OUTPUT:
        return text
    return f"... {len(text) - _MOST_OUTPUT} earlier characters are not shown ...\n{text[-_MOST_OUTPUT:]}"


def _load_value(path: Path) -> object:
    from frog.launch.cells.values_rank import load_value

    try:
        return load_value(path)
    except Exception as error:
        raise UsageError(f"the value cannot be loaded here: {type(error).__name__}: {error}") from None
    finally:
        path.unlink(missing_ok=True)
