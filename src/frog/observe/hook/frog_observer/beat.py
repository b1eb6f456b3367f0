"""The observer's thread: twice a second it writes where the rank is, and answers requests for more.

The program does not see the thread: it is not in `threading.enumerate()`, receives no signal and does not delay the
exit. Forked children do not have it.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from _queue import SimpleQueue
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import frames, rank_files
from .causes import Causes, Memory
from .crashes import Crashes, Errors, handled_by
from .place import Owner, Place
from .recorder import Recorder, torch_version
from .unrecorded_calls import Messages, NoSync, joining_of, root_of, transfer_of
from .workers import Workers

BEAT_S = 0.5
_PLAIN_S, _FRAMES_S = 2.0, 5.0
"""Deadlines for torch's answers without and with frames. They take 0.1 s, or for ever."""

_MOST_LINES = 20
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
"""Signals that a thread raises by its own fault; blocking them would hide a crash."""


class Beats:
    """One rank's state, written until the process ends."""

    def __init__(self, place: Place) -> None:
        self.place, self.pid = place, os.getpid()
        self._main = threading.main_thread().ident or 0
        self._recorder, self._owner, self._no_sync = Recorder(), Owner(place, self.pid), NoSync()
        self._messages, self._workers = Messages(), Workers(place, _start_thread)
        self._causes, self._memory = Causes(self._main), Memory()
        self._beating, self._over = _thread.allocate_lock(), False
        self._state, self._started_unix_ns = "running", time.time_ns()
        self._answered = rank_files.read_request(place.requests)[0]
        self._samples = {"taken": 0, "in_collective": 0, "waiting": 0}
        self._lines: dict[str, int] = {}
        self._joined = False
        self._last_cpu_s, self._last_s = time.process_time(), time.monotonic()
        self._last_queued_s = _queued_s()
        self._forking = False

    def start(self) -> None:
        """Write the first status, and start the threads."""
        with contextlib.suppress(OSError):
            os.makedirs(self.place.folder, exist_ok=True)
        self._beat()
        self._crashes = Crashes(os.path.join(self.place.folder, "crash.txt"))
        if not _checks_memory():  # no call waits for the timer's thread: see _start_thread
            self._crashes.beat()
        self._errors = Errors(self.place, self._fail)
        self._dumper = Dumper(_start_thread)
        _start_thread(self._run)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork)
        atexit.register(self._end)

    def _run(self) -> None:
        while not self._over:
            time.sleep(BEAT_S)
            if self._crashes.is_dump_due():
                continue
            try:
                self._beat()
                if not self._forking:
                    self._crashes.beat()
                self._answer()
            except Exception:  # torch is half loaded, or the interpreter is shutting down
                continue

    # ---- status ------------------------------------------------------------------------------------------------------

    def _beat(self, last: bool = False) -> None:
        """Write status.json. last: it stays as it is from now on."""
        if not self._beating.acquire(timeout=_PLAIN_S):
            return
        try:
            if not self._over and self._owner.may_write(torch_version() is not None):
                rank_files.rewrite(self.place.folder, "status.json", rank_files.encode(self._status()))
            self._over = self._over or last
        finally:
            self._beating.release()

    def _status(self) -> dict[str, Any]:
        stack = frames.stack_of(sys._current_frames().get(self._main))
        line = frames.user_line(stack)
        self._recorder.look_at_groups()
        self._no_sync.watch()
        self._messages.watch()
        self._workers.watch()
        groups, cpu_s = self._recorder.counts(), time.process_time()
        resident = _resident_bytes()
        self._take_sample(groups, line, cpu_s, stack)
        self._memory.look(sum(group["enqueued"] for group in groups), resident)
        frequent = sorted(self._lines.items(), key=lambda item: -item[1])[:_MOST_LINES]
        place = self.place
        return {
            "format": 1,
            "rank": place.rank,
            "local_rank": place.local_rank,
            "node_rank": place.node_rank,
            "world_size": place.world_size,
            "attempt": place.attempt,
            "host": place.host,
            "pid": self.pid,
            "start": place.start,
            "started_unix_ns": self._started_unix_ns,
            "unix_ns": time.time_ns(),
            "mono_ns": time.monotonic_ns(),
            "state": self._state,
            "cpu_s": cpu_s,
            "rss_bytes": resident,
            "memory": self._memory.moments,
            "groups": groups,
            "line": line,
            "in": frames.place_of(stack[0]) if stack else None,
            "in_message": self._messages.are_awaited(stack),
            "no_sync": self._no_sync.seen(),
            "samples": {**self._samples, "lines": frequent, "causes": self._causes.counts},
            "thread": self._causes.thread,
            "answered": self._answered,
            "torch": torch_version(),
            "backend": self._recorder.backend,
        }

    def _take_sample(
        self, groups: list[dict[str, Any]], line: dict[str, Any] | None, cpu_s: float, stack: list[FrameType]
    ) -> None:
        """Count where the main thread is at this beat. stack: innermost first."""
        now_s, queued_s = time.monotonic(), _queued_s()
        passed_s, used_s = now_s - self._last_s, cpu_s - self._last_cpu_s
        waits = used_s < 0.1 * passed_s and used_s + queued_s - self._last_queued_s < 0.5 * passed_s
        self._causes.look(stack, passed_s - BEAT_S, passed_s, queued_s - self._last_queued_s)
        self._last_cpu_s, self._last_s, self._last_queued_s = cpu_s, now_s, queued_s
        if not self._joined and any(group["enqueued"] for group in groups):
            self._joined = True
            self._lines.clear()  # importing and joining take long, but are not what the program does
            self._causes.clear()
        self._samples["taken"] += 1
        self._samples["waiting"] += waits
        self._samples["in_collective"] += any(group["enqueued"] > group["completed"] for group in groups)
        if line is not None:
            name = f"{os.path.basename(line['file'])}:{line['line']}"
            self._lines[name] = self._lines.get(name, 0) + 1
            if len(self._lines) > 1000:  # a program of a thousand lines that all take equally long
                self._lines = {name: number for name, number in self._lines.items() if number > 1}

    # ---- evidence on request -----------------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Answer a new request, with as much as torch returns in time."""
        number, reason = rank_files.read_request(self.place.requests)
        if number == self._answered or number == 0:
            return
        self._write_evidence(reason)
        self._answered = number
        self._beat()

    def _write_evidence(self, reason: str) -> None:
        """Write stacks.json and collectives.json: first what cannot block, then what may."""
        if not self._owner.may_write(torch_version() is not None):
            return
        self._write_stacks(reason, with_code=False)
        self._dumper.run(lambda: self._write_stacks(reason, with_code=True), _PLAIN_S)
        self._ask_for_collectives(_FRAMES_S)

    def _ask_for_collectives(self, frames_s: float) -> None:
        """Write collectives.json, and again with the calling lines, for which torch may need longer."""
        if self._dumper.run(lambda: self._write_collectives(with_frames=False), _PLAIN_S):
            self._dumper.run(lambda: self._write_collectives(with_frames=True), frames_s)

    def _write_stacks(self, reason: str, with_code: bool) -> None:
        head = {"format": 1, "rank": self.place.rank, "pid": self.pid, "unix_ns": time.time_ns(), "reason": reason}
        main = frames.stack_of(sys._current_frames().get(self._main))
        asked = {
            "transfer": transfer_of(main),
            "joining": joining_of(main),
            "root": root_of(main),
            "handled": handled_by(self._main),
        }
        stacks = frames.all_stacks(self._main, with_code)
        rank_files.write_json(self.place.folder, "stacks.json", {**head, **asked, "threads": stacks})

    def _write_collectives(self, with_frames: bool) -> None:
        head = {"format": 1, "rank": self.place.rank, "pid": self.pid, "unix_ns": time.time_ns()}
        content = {**head, **self._recorder.collectives(with_frames), "messages": self._messages.seen()}
        data = rank_files.encode(content)
        while len(data) > rank_files.MOST_BYTES and content["entries"]:
            content["entries"] = content["entries"][(len(content["entries"]) + 1) // 2 :]
            data = rank_files.encode(content)
        rank_files.write_bytes(self.place.folder, "collectives.json", data)

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _fail(self) -> None:
        """Write all evidence: an exception ends the program."""
        self._state = "failed"
        self._write_evidence("error")
        self._beat()

    def _end(self) -> None:
        """Write the last status. Python calls this when the program ends, after the program's own handlers."""
        if os.getpid() != self.pid:
            return
        try:
            self._errors.note_last()
            if self._state == "running":
                self._state = "ended"
                if self._owner.may_write(torch_version() is not None):
                    self._ask_for_collectives(_PLAIN_S)
            self._beat(last=True)
            self._crashes.stop_timer()
        except Exception:
            return

    # ---- forks -------------------------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        if os.getpid() != self.pid:
            return
        self._forking = True
        self._crashes.stop_timer()
        if sys.version_info >= (3, 12) and _num_threads() <= 3:  # the program alone would not be warned
            warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)

    def _after_fork(self) -> None:
        self._forking = False


def _start_thread(run: Callable[[], None]) -> None:
    """Start a thread that receives no signal: the program's main thread expects them. Return when it runs.

    Before it runs Python code, a thread frees memory without the interpreter's lock. Just before the program, Python
    below 3.14 exchanges its allocators for a moment: with those that check memory, it would crash (gh-111924).
    """
    begun = _thread.allocate_lock()
    begun.acquire()

    def run_from_here() -> None:
        begun.release()
        run()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        _thread.start_new_thread(run_from_here, ())  # the thread inherits what is blocked
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    begun.acquire()


def _checks_memory() -> bool:
    """Return whether Python has its debug allocators: in development mode, by PYTHONMALLOC, or in a debug build."""
    by_variable = "debug" in os.environ.get("PYTHONMALLOC", "") and not sys.flags.ignore_environment
    return sys.flags.dev_mode or by_variable or hasattr(sys, "gettotalrefcount")


def _num_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _queued_s() -> float:
    """Return how long the main thread has been ready to run without a core; 0 if the system does not say.

    On busy machines, a rank that computes may get less than a tenth of a core.
    """
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _resident_bytes() -> int:
    """Return the host memory of this process. Not a GPU's: torch's allocator may be locked in a hang."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


# ---- asking torch in a thread that may block -------------------------------------------------------------------------


class Dumper:
    """Runs jobs one after the other, in a thread that may block for ever without harm.

    The thread exists from the start: Python refuses to start one while it exits.
    """

    def __init__(self, start_thread: Callable[[Callable[[], None]], None]) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], None], Any]] = SimpleQueue()
        self._busy = False
        start_thread(self._run)

    def run(self, job: Callable[[], None], deadline_s: float) -> bool:
        """Run a job and wait for its end; return False if it is not over in time, or an earlier one still blocks."""
        if self._busy:
            return False
        self._busy = True
        over = _thread.allocate_lock()
        over.acquire()
        self._jobs.put((job, over))
        return over.acquire(timeout=deadline_s)

    def _run(self) -> None:
        while True:
            job, over = self._jobs.get()
            try:
                job()
            except Exception:  # another version of torch: the file stays as it is
                pass
            finally:
                self._busy = False
                over.release()
