"""What the observer inside each rank of any program wrote (`src/frog/observe/hook`), as typed data.

    observed/attempt_A/rank_N/    status.json, collectives.json, stacks.json, error.json, crash.txt

A rank may have been killed at any moment, and a file may come from another version or another tool: files that are
missing are None, and damaged ones are None and listed in `problems`.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import msgspec

from frog.core.errors import RunError
from frog.core.files import write_json
from frog.core.runs.event_schema import Count, Rank
from frog.core.schema import Typed, read_bounded, read_typed

_MOST_BYTES = 16 << 20
_MOST_TEXT_BYTES = 1 << 20
_MOST_WORKERS = 64
_FRESH_NS = 5_000_000_000


class CodeLine(Typed, frozen=True, kw_only=True):
    """A place in a program."""

    file: str
    line: Count
    function: str = ""
    code: str = ""
    """The line's text, if the observer could read it."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class GroupCounts(Typed, gc=False, frozen=True, kw_only=True):
    """How many collectives a process group has enqueued and completed on this rank."""

    group: str
    enqueued: Count
    completed: Count
    backend: str | None = None

    @property
    def pending(self) -> bool:
        """True if a collective has not completed."""
        return self.enqueued > self.completed


class Samples(Typed, frozen=True, kw_only=True):
    """Where the main thread was at each beat."""

    taken: Count = 0
    in_collective: Count = 0
    """Beats at which a collective was pending."""
    waiting: Count = 0
    """Beats since whose predecessor the process used less than a tenth of a core."""
    lines: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """The most frequent lines, as `train.py:298`."""
    causes: dict[str, Count] = msgspec.field(default_factory=dict)
    """Beats at which something took the time: compile, loader, checkpoint, gc, thread or gil."""


class NoSync(Typed, frozen=True, kw_only=True):
    """How often the program entered DDP's `no_sync`."""

    entered: Count
    without_effect: Count = 0
    """Contexts in which the gradients were averaged all the same, since the forward ran before."""
    line: CodeLine | None = None
    """The line of the first one."""


class Status(Typed, frozen=True, kw_only=True, rename={"inside": "in"}):
    """status.json, twice a second: where a rank is, or was when it was killed."""

    KIND: ClassVar[str] = "a rank's status"
    FORMAT: ClassVar[int | None] = 1

    rank: Rank
    local_rank: Rank
    node_rank: Rank
    world_size: Count
    attempt: Rank
    host: str
    pid: Count
    start: str = ""
    """The start of its container and job, which differs after a restart of either."""
    started_unix_ns: Count
    unix_ns: Count
    mono_ns: Count
    """`time.monotonic_ns()`, comparable between processes of one machine."""
    state: Literal["running", "ended", "failed"]
    """failed: an exception ended the program. A rank that was killed remains "running"."""
    cpu_s: float
    """Processor time of the process and its threads so far."""
    rss_bytes: Count
    groups: list[GroupCounts] = msgspec.field(default_factory=list)
    line: CodeLine | None = None
    """Innermost line of the main thread in the user's code."""
    inside: CodeLine | None = None
    """Innermost line of the main thread in any Python code."""
    in_message: bool = False
    """True if the main thread waits for a message between two ranks that the program has begun."""
    no_sync: NoSync | None = None
    samples: Samples = msgspec.field(default_factory=Samples)
    memory: list[tuple[Count, Count]] = msgspec.field(default_factory=list)
    """Moments of its life: collectives so far, and MiB of host memory."""
    thread: str = ""
    """A thread of the program that took processor time from the main thread, when last seen so."""
    answered: Count = 0
    """Number of the last request that the rank has answered."""
    torch: str | None = None
    backend: str | None = None

    def is_fresh(self, now_ns: int) -> bool:
        """True if the rank still runs, as far as its last status shows: it writes one twice a second."""
        return self.state == "running" and now_ns - self.unix_ns < _FRESH_NS


class GroupInfo(Typed, frozen=True, kw_only=True):
    """A process group."""

    description: str = ""
    ranks: list[Rank] = msgspec.field(default_factory=list)
    """Global ranks; empty if unknown."""


class CollectiveEntry(Typed, frozen=True, kw_only=True):
    """A collective in torch's flight recorder."""

    group: str
    seq: Count
    """Number within its group, from 1."""
    op: str
    backend: str = ""
    p2p: bool = False
    sizes: list[list[int]] = msgspec.field(default_factory=list)
    dtypes: list[str] = msgspec.field(default_factory=list)
    created_unix_ns: Count = 0
    started_unix_ns: Count | None = None
    completed_unix_ns: Count | None = None
    done: bool
    line: CodeLine | None = None
    """The line of the user's code that called it, if the dump has frames."""
    stack: list[CodeLine] = msgspec.field(default_factory=list)
    """Frames of the user's code, innermost first."""


class Transfer(Typed, frozen=True, kw_only=True):
    """A message between two ranks."""

    op: Literal["send", "recv", "isend", "irecv"]
    peer: Rank | None = None
    """The other rank; None for a message from any rank."""
    tag: int = 0
    size: list[int] = msgspec.field(default_factory=list)
    dtype: str = ""

    @property
    def is_send(self) -> bool:
        return self.op.endswith("send")


class Joining(Typed, frozen=True, kw_only=True):
    """What a rank asks for in `init_process_group` or `new_group`, while it is in it. None: not in the call."""

    op: Literal["init_process_group", "new_group"]
    world_size: Count | None = None
    rank: Rank | None = None
    ranks: list[int] | None = None
    """Members of the new group."""
    name: str | None = None
    """The name that torch has given the new group, a number in most programs."""


class Message(Transfer, frozen=True, kw_only=True):
    """A message that `isend` or `irecv` began."""

    group: str
    number: Count
    """Number among the messages of this operation, peer, tag and group, from 1: the same on both ranks."""
    line: CodeLine | None = None
    done: bool = False
    """True if the program has waited for it, even if that failed."""


class Messages(Typed, frozen=True, kw_only=True):
    """The messages of a rank."""

    whole: bool = False
    """True if the counts include the first message."""
    counts: list[tuple[str, Rank | None, int, str, Count]] = msgspec.field(default_factory=list)
    """Operation, other rank, tag, group, and how many the rank has begun: the channels used last."""
    last: list[Message] = msgspec.field(default_factory=list)
    """The last messages, oldest first."""


class Collectives(Typed, frozen=True, kw_only=True):
    """collectives.json: the last collectives of a rank, written on request, on an error and at the end."""

    KIND: ClassVar[str] = "a rank's collectives"
    FORMAT: ClassVar[int | None] = 1

    rank: Rank
    pid: Count
    unix_ns: Count
    frames: bool
    """False if torch did not return the calling lines in time."""
    groups: dict[str, GroupInfo] = msgspec.field(default_factory=dict)
    status: list[GroupCounts] = msgspec.field(default_factory=list)
    entries: list[CollectiveEntry] = msgspec.field(default_factory=list)
    messages: Messages = msgspec.field(default_factory=Messages)


class ThreadStack(Typed, frozen=True, kw_only=True, rename={"is_main": "main"}):
    """A thread's frames, innermost last."""

    name: str
    is_main: bool = False
    frames: list[CodeLine] = msgspec.field(default_factory=list)


class EarlierError(Typed, frozen=True, kw_only=True):
    """An exception that ended a thread before the program failed, or that a rank was handling."""

    type: str
    message: str = ""
    line: CodeLine | None = None
    thread: str = ""


class Stacks(Typed, frozen=True, kw_only=True):
    """stacks.json: all threads of a rank."""

    KIND: ClassVar[str] = "a rank's stacks"
    FORMAT: ClassVar[int | None] = 1

    rank: Rank
    pid: Count
    unix_ns: Count
    reason: str = ""
    transfer: Transfer | None = None
    """The message for which the main thread waits in `send` or `recv`."""
    joining: Joining | None = None
    """The group that the main thread joins."""
    root: Rank | None = None
    """The source or destination that the main thread names for the broadcast, reduce, gather or scatter it waits in."""
    handled: EarlierError | None = None
    """The exception that the main thread handles: in an `except`, in a `finally`, or at the end of a `with`."""
    threads: list[ThreadStack] = msgspec.field(default_factory=list)


class WorkerStack(Typed, frozen=True, kw_only=True):
    """worker_N.json: where a worker of the rank's DataLoader is."""

    KIND: ClassVar[str] = "a worker's stack"
    FORMAT: ClassVar[int | None] = 1

    rank: Rank
    pid: Count
    unix_ns: Count
    worker: Count
    frames: list[CodeLine] = msgspec.field(default_factory=list)
    """Innermost last."""


class ProgramError(Typed, frozen=True, kw_only=True):
    """error.json: an exception that ended a rank or one of its threads."""

    KIND: ClassVar[str] = "a rank's error"
    FORMAT: ClassVar[int | None] = 1

    rank: Rank
    pid: Count
    unix_ns: Count
    type: str
    message: str = ""
    traceback: str = ""
    frames: list[CodeLine] = msgspec.field(default_factory=list)
    line: CodeLine | None = None
    """Innermost frame in the user's code."""
    thread: str = "MainThread"
    transfer: Transfer | None = None
    """The message for which it waited in `send` or `recv` until the error."""
    joining: Joining | None = None
    """The group that it was joining."""
    root: Rank | None = None
    """The source or destination that it named for the broadcast, reduce, gather or scatter that failed."""
    earlier: list[EarlierError] = msgspec.field(default_factory=list)
    handled: EarlierError | None = None
    """The exception that the main thread was handling when this one was raised."""


class Request(Typed, frozen=True, kw_only=True):
    """observed/request.json: asks all ranks of a run for collectives.json and stacks.json."""

    number: Count
    """Increases with each request."""
    reason: str = ""


@dataclass
class Observed:
    """The evidence of one rank in one attempt."""

    folder: Path
    rank: int
    status: Status | None = None
    collectives: Collectives | None = None
    stacks: Stacks | None = None
    error: ProgramError | None = None
    workers: list[WorkerStack] = field(default_factory=list)
    crash: str = ""
    """Output of faulthandler: a fatal signal, or Python code that could not run for 30 s."""
    problems: list[str] = field(default_factory=list)
    """Messages about files that could not be read."""

    @property
    def groups(self) -> list[GroupCounts]:
        """Collectives of each group, without the messages that gloo's counts include, as far as they are known."""
        counted = self.status.groups if self.status is not None else []
        if self.collectives is None:
            return counted
        last = {entry.group: entry.seq for entry in self.collectives.entries if entry.backend == "gloo"}
        known = self.collectives.status
        messages = {group.group: max(0, group.completed - last.get(group.group, group.completed)) for group in known}
        return [_without(group, messages.get(group.group, 0)) for group in counted]

    @property
    def num_completed(self) -> int:
        """Number of collectives that it has completed."""
        return sum(group.completed for group in self.groups)


def _without(group: GroupCounts, messages: int) -> GroupCounts:
    enqueued, completed = max(0, group.enqueued - messages), max(0, group.completed - messages)
    return msgspec.structs.replace(group, enqueued=enqueued, completed=completed)


def observed_folder(run: Path) -> Path:
    """Return the folder of a run that the observers write to."""
    return run / "observed"


def read_observed(run: Path) -> dict[int, dict[int, Observed]]:
    """Read the evidence of a run folder, by attempt and rank. Empty if no rank was observed."""
    attempts = {
        attempt: {rank: read_rank_observed(path, rank) for rank, path in _numbered(folder, "rank")}
        for attempt, folder in _numbered(observed_folder(run), "attempt")
    }
    return {attempt: ranks for attempt, ranks in attempts.items() if ranks}


def read_rank_observed(folder: Path, rank: int) -> Observed:
    """Read the files of one rank."""
    observed = Observed(folder, rank)
    observed.status = _read(observed, "status.json", Status)
    observed.collectives = _read(observed, "collectives.json", Collectives)
    observed.stacks = _read(observed, "stacks.json", Stacks)
    observed.error = _read(observed, "error.json", ProgramError)
    names = sorted(path.name for path in folder.glob("worker_*.json"))[:_MOST_WORKERS]
    observed.workers = [worker for name in names if (worker := _read(observed, name, WorkerStack)) is not None]
    with contextlib.suppress(FileNotFoundError, RunError):
        observed.crash = read_bounded(folder / "crash.txt", most_bytes=_MOST_TEXT_BYTES).decode(errors="replace")
    return observed


def read_statuses(run: Path, attempt: int) -> dict[int, Status]:
    """Read only where the ranks of an attempt are, by rank: for a watchdog, which does so often."""
    statuses: dict[int, Status] = {}
    for rank, path in _numbered(observed_folder(run) / f"attempt_{attempt}", "rank"):
        status = _read(Observed(path, rank), "status.json", Status)
        if status is not None:
            statuses[rank] = status
    return statuses


def write_request(run: Path, reason: str) -> int:
    """Ask all ranks of a run for their evidence; return the number of the request."""
    path = observed_folder(run) / "request.json"
    number = 1
    with contextlib.suppress(FileNotFoundError, RunError):
        number = read_typed(path, Request).number + 1
    write_json(path, {"number": number, "reason": reason})
    return number


T = TypeVar("T", bound=Typed)


def _read(found: Observed, name: str, kind: type[T]) -> T | None:
    problem = ""
    for _ in range(3):  # the rank may be writing at this moment
        try:
            return read_typed(found.folder / name, kind, most_bytes=_MOST_BYTES)
        except FileNotFoundError:
            return None
        except RunError as error:
            problem = error.what
    found.problems.append(problem)
    return None


def _numbered(folder: Path, name: str) -> list[tuple[int, Path]]:
    """Return the folders called `name_N` in order, with their numbers."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return []
    matches = ((re.fullmatch(rf"{name}_(\d{{1,7}})", entry.name), entry) for entry in entries)
    return sorted((int(match[1]), entry) for match, entry in matches if match and entry.is_dir())
