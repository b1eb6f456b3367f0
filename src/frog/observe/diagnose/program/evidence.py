"""What is known about a failed program: one record per rank, whichever tool wrote it. Rules read nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from frog.core.runs.observed import CodeLine, Joining, Messages, NoSync, Transfer, WorkerStack
from frog.core.terminal import printable
from frog.core.units import span
from frog.observe.diagnose.known_errors.explain import Explanation, LogReader

if TYPE_CHECKING:
    from frog.observe.check.rule import Answer

_MOST_GAPS = 4
"""Largest factor by which more ranks may be missing than known."""
_MOST_LINE = 300
MOST_LAST_LINES = 40
"""Lines to keep of the end of a rank's log."""


class Group(NamedTuple):
    """A process group, the same on all its ranks. Its name may differ from rank to rank, its members may not."""

    members: tuple[int, ...]
    """Global ranks; empty if unknown."""
    name: str
    """A number among the groups of the same members, or torch's name if the members are unknown."""

    def label(self, world: Iterable[int]) -> str:
        """Return words for people: "all ranks", "the group of ranks 0 and 2"."""
        if self.members and set(self.members) == set(world):
            return "all ranks" if self.name == "0" else f"all ranks (group {self.name})"
        if self.members:
            return f"the group of {span(list(self.members))}"
        return f"group {printable(self.name)}" if self.name else "its group"


@dataclass(frozen=True)
class Call:
    """A collective that a rank called."""

    group: Group
    seq: int
    """Number within its group, from 1."""
    op: str
    done: bool
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    numel: int | None = None
    """Number of elements, if no sizes are known."""
    p2p: bool = False
    started: bool | None = None
    """True if the device has started it; None if unknown."""
    created_ns: int | None = None
    line: CodeLine | None = None
    """The line of the user's code that called it."""
    callers: tuple[CodeLine, ...] = ()
    """Lines of the user's code that led to it, innermost first, if known."""
    source: str = ""

    @property
    def elements(self) -> int | None:
        """Number of elements of all its tensors."""
        if not self.sizes:
            return self.numel
        total = 0
        for size in self.sizes:
            product = 1
            for width in size:
                product *= width
            total += product
        return total

    @property
    def size_text(self) -> str:
        if self.sizes:
            return "x".join(map(str, self.sizes[0])) + (", …" if len(self.sizes) > 1 else "") if self.sizes[0] else "1"
        return f"{self.numel} elements" if self.numel is not None else ""

    def __str__(self) -> str:
        kind = f" {self.dtypes[0].lower()}" if self.dtypes else ""
        size = f" of {self.size_text}{kind}" if self.size_text else ""
        return printable(f"{self.op}{size}")


@dataclass(frozen=True)
class SeenError:
    """An exception of a rank."""

    type: str
    message: str
    line: CodeLine | None = None
    """Innermost line in the user's code."""
    frames: tuple[CodeLine, ...] = ()
    """Innermost last."""
    unix_ns: int | None = None
    source: str = ""
    fatal: bool = True
    """False if the program may have continued after it, as far as the evidence shows."""

    @property
    def first_line(self) -> str:
        line = self.message.strip().partition("\n")[0]
        return line if len(line) <= _MOST_LINE else f"{line[: _MOST_LINE // 2]} … {line[-_MOST_LINE // 2 :]}"

    @property
    def parameters(self) -> str:
        """The lines of a message that name parameters, as at the end of DDP's about unused ones."""
        lines = [line.strip() for line in self.message.split("\n")[1:] if "did not receive grad" in line]
        return "; ".join(line[:_MOST_LINE] for line in lines[:2])

    @property
    def short_type(self) -> str:
        return self.type.rpartition(".")[2]


@dataclass
class RankEvidence:
    """What is known about one rank. None and empty: unknown."""

    rank: int
    host: str | None = None
    node_rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    """Popen's code: negative for a signal."""
    exited_ns: int | None = None
    exit_source: str = ""
    state: str | None = None
    """running, ended or failed, as its observer last saw it."""
    seen_ns: int | None = None
    """When it was last seen."""
    cpu_busy: bool | None = None
    """True if it computed when last seen; False if it waited."""
    stopped: bool = False
    """True if its process existed but no thread of it could run."""
    node_lost_ns: int | None = None
    """When its node was lost, if it was."""
    error: SeenError | None = None
    thread_error: SeenError | None = None
    """An exception that ended one of its threads, while the main thread continued."""
    handled: SeenError | None = None
    """The exception that it was handling when it made its last call: in an `except`, a `finally`, or after a `with`."""
    caught: list[SeenError] = field(default_factory=list)
    """Exceptions in its log that did not end it."""
    calls: list[Call] = field(default_factory=list)
    has_calls: bool = False
    """True if a record of its collectives was found, even an empty one."""
    dumped_ns: int | None = None
    enqueued: dict[Group, int] = field(default_factory=dict)
    """Number of the last collective that it called, by group."""
    completed: dict[Group, int] = field(default_factory=dict)
    transfer: Transfer | None = None
    """The message between two ranks for which it waits, or waited until its error."""
    joining: Joining | None = None
    """The group that it joins, or was joining until its error."""
    root: int | None = None
    """The source or destination that it named for the collective in which it waits, or waited until its error."""
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The members of its groups, by torch's name for them."""
    messages: Messages | None = None
    """The messages that it has begun, if recorded."""
    in_message: bool = False
    """True if it waited for one of them when last seen."""
    num_messages: int = 0
    """Messages that it had sent or received before its last collective, as far as known."""
    no_sync: NoSync | None = None
    """How often it entered DDP's `no_sync`, and how often that had no effect."""
    line: CodeLine | None = None
    """Innermost line of the main thread in the user's code, when last seen."""
    often: str = ""
    """The line of the user's code at which it was seen most often, such as `train.py:14`."""
    stack: list[CodeLine] = field(default_factory=list)
    """Frames of the main thread, innermost first."""
    causes: dict[str, int] = field(default_factory=dict)
    """Beats at which something took the main thread's time (hook/frog_observer/causes.py)."""
    num_beats: int = 0
    """Beats since it joined, at most those at its most frequent lines."""
    thread: str = ""
    """A thread that took processor time."""
    memory: list[tuple[int, int]] = field(default_factory=list)
    """Collectives so far, and MiB of host memory, over its life."""
    workers: list[WorkerStack] = field(default_factory=list)
    """Where the workers of its DataLoader were."""
    crash: str = ""
    """What faulthandler wrote about a fatal signal."""
    last_lines: list[str] = field(default_factory=list)
    """The end of its log."""
    mismatch: tuple[str, str] | None = None
    """The line of a log in which the backend reports that it received a message of another collective; the log."""
    trouble: list[str] = field(default_factory=list)
    """Lines of its log that mention an error which it survived."""
    nan_line: str = ""
    """The first line of its log with a loss that is not finite."""
    num_losses: int = 0
    """Lines with a loss before that line."""
    norm_line: str = ""
    """The first line of its log from which on the gradient norm, which all ranks share, is NaN."""
    sources: list[str] = field(default_factory=list)

    @property
    def is_behind_its_count(self) -> bool:
        """True if it had called a collective that had not completed, by the counts of its status."""
        return any(number > self.completed.get(group, 0) for group, number in self.enqueued.items())

    def add_source(self, path: str) -> None:
        if path not in self.sources:
            self.sources.append(path)

    def by_group(self) -> dict[Group, list[Call]]:
        """Return its collectives by group, in order. Messages between two ranks are left out."""
        by_group: dict[Group, list[Call]] = {}
        for call in self.calls:
            if not call.p2p:
                by_group.setdefault(call.group, []).append(call)
        return {group: sorted(calls, key=lambda call: call.seq) for group, calls in by_group.items()}

    @property
    def pending(self) -> list[Call]:
        """Collectives that it called and that have not completed, oldest first."""
        return sorted((call for call in self.calls if not call.done), key=lambda call: call.created_ns or 0)


@dataclass
class JobState:
    """What a scheduler or launcher says about the whole job."""

    state: str | None = None
    """Slurm's state: OUT_OF_MEMORY, TIMEOUT, NODE_FAIL, CANCELLED, PREEMPTED, FAILED, COMPLETED."""
    source: str = ""
    text: str = ""
    """The line that says so."""
    unix_ns: int | None = None


@dataclass
class Evidence:
    """Everything that a folder or file shows about one start of a program."""

    where: str
    ranks: dict[int, RankEvidence] = field(default_factory=dict)
    world_size: int | None = None
    jobs: list[JobState] = field(default_factory=list)
    stopped_by_user: bool = False
    hung: bool = False
    """True if a watchdog or time-out ended it."""
    deadline_s: float | None = None
    ended_code: int | None = None
    """Exit code of the launcher."""
    active: bool = False
    """True if the program may still be running."""
    tasks: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Exit codes of srun's tasks, and the file that reports them."""
    by_torchrun: bool = False
    """True if torchrun started the ranks, so that a task of srun may have several."""
    mismatch: tuple[str, str] | None = None
    """As of a rank, in a log that names none."""
    loose_errors: list[SeenError] = field(default_factory=list)
    """Exceptions in text that names no rank."""
    files: list[str] = field(default_factory=list)
    """Files that contained evidence."""
    problems: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    """What the rules of `frog check` say about the numbers, if the ranks recorded them."""
    log_reader: LogReader | None = None
    """Reads the lines of the logs while evidence is gathered."""
    explanation: Explanation | None = None
    """What the table of known errors says about the logs."""

    def of(self, rank: int) -> RankEvidence:
        """Return the record of a rank, a new one if necessary."""
        return self.ranks.setdefault(rank, RankEvidence(rank))

    @property
    def world(self) -> list[int]:
        """All ranks that should exist, as far as known."""
        groups = {id(group): group for each in self.ranks.values() for group in each.enqueued}
        groups |= {id(call.group): call.group for each in self.ranks.values() for call in each.calls}
        members = {rank for group in groups.values() for rank in group.members}
        known = {*self.ranks, *members}
        size = self.world_size or 0
        if not size and known and max(known) < _MOST_GAPS * len(known):
            size = max(known)  # ranks are numbered without gaps
        return sorted({*known, *range(size)})

    @property
    def has_records(self) -> bool:
        """True if an observer, a launcher of Frog's or a flight recorder wrote down what the ranks did."""
        return self.ended_code is not None or any(
            rank.has_calls or rank.state is not None or rank.crash for rank in self.ranks.values()
        )

    @property
    def has_failed(self) -> bool:
        """True if something shows that the program did not end normally."""
        if self.hung or any(job.state not in (None, "COMPLETED", "RUNNING") for job in self.jobs):
            return True
        if self.ended_code not in (None, 0):
            return True
        ranks = self.ranks.values()
        return any(rank.exit_code not in (None, 0) or (rank.error is not None and rank.error.fatal) for rank in ranks)

    def state(self, *names: str) -> JobState | None:
        """Return the first report of one of these states."""
        return next((job for job in self.jobs if job.state in names), None)


def place(line: CodeLine | None) -> str:
    """Return a line for people: `train.py:14 (main)`; empty if unknown."""
    if line is None:
        return ""
    name = PurePosixPath(line.file.replace("\\", "/")).name or line.file
    return printable(f"{name}:{line.line}" + (f" ({line.function})" if line.function not in ("", "<module>") else ""))


def at_place(line: CodeLine | None) -> str:
    """Return ` at train.py:14 (main)`, with a space in front; empty if unknown."""
    return f" at {place(line)}" if line is not None else ""


def same_line(one: CodeLine | None, other: CodeLine | None) -> bool:
    """True if two calls come from the same line of the same file. False if either is unknown."""
    return one is not None and other is not None and (one.file, one.line) == (other.file, other.line)


# ---- names of process groups, which may differ from rank to rank, matched by their members ---------------------------


class GroupNames:
    """The groups of one rank, by torch's name for them.

    others: the groups of another rank, for a rank of which only the names are known.
    """

    def __init__(
        self, members: Mapping[str, tuple[int, ...]] | None = None, others: Mapping[str, Group] | None = None
    ) -> None:
        self.found: dict[str, Group] = dict(others or {})
        numbers: dict[tuple[int, ...], int] = {}
        for name, ranks in sorted((members or {}).items(), key=lambda item: _order(item[0])):
            key = tuple(sorted(set(ranks)))
            if key:
                self.found[name] = Group(key, str(numbers.get(key, 0)))
                numbers[key] = numbers.get(key, 0) + 1

    def find(self, name: str) -> Group:
        """Return the group with a name; one without members if they are unknown."""
        return self.found.setdefault(name, Group((), name))


def _order(name: str) -> tuple[int, int, str]:
    """Sort numbers in the order of their creation, before other names."""
    return (0, int(name), name) if name.isdecimal() and len(name) < 12 else (1, 0, name)
