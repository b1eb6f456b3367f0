"""Logs: of one rank, of several with their names in front of the lines, or of a whole job.

Torchrun and Slurm write into them too; torchrun's error files and the text of `sacct` say the same in another form.
"""

from __future__ import annotations

import datetime as dt
import re
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from frog.core.runs.observed import CodeLine
from frog.core.units import parse_whole
from frog.observe.diagnose.known_errors.lines import LogLine, clean_lines
from frog.observe.diagnose.known_errors.tracebacks import Traceback, TracebackReader
from frog.observe.diagnose.known_errors.watchdog import Watchdog
from frog.observe.diagnose.program.code_lines import fault_frames, user_line
from frog.observe.diagnose.program.evidence import (
    MOST_LAST_LINES,
    Call,
    Evidence,
    GroupNames,
    JobState,
    RankEvidence,
    SeenError,
    same_line,
)
from frog.observe.diagnose.program.flight_recorder import op_name
from frog.observe.diagnose.program.peer_errors import is_mismatch_text

_FROG_PREFIX = re.compile(r"^rank (\d{1,6}) \| ?")
_NOT_FINITE = re.compile(r"\bloss\b[^\w\n]{0,20}(nan|-?inf)\b", re.IGNORECASE)
_A_LOSS = re.compile(r"\bloss\b", re.IGNORECASE)
_NORM = re.compile(r"\bgrad(?:ient)?[ _-]?norm\b[^\w\n]{0,20}(?:(nan)\b|\d)", re.IGNORECASE)
_TROUBLE = re.compile(r"\b(skipp(ing|ed)|caught|exception|error|corrupt\w*|damaged)\b", re.IGNORECASE)
_NOISE = re.compile(
    r"ProcessGroup|[Ww]arning|warn\(|frame #|terminate called|what\(\):|^\W*$|Exception (raised|ignored)|"
    r"torch\.distributed|elastic|traceback|Fatal Python|resource_tracker|=====|^\[?[EWI]\d{4}|srun|slurmstepd|"
    r"Killed|Aborted"
)
_MOST_TROUBLE, _MOST_LOOSE = 20, 50


@dataclass
class _Stream:
    """The lines of one rank in one file."""

    tracebacks: list[Traceback] = field(default_factory=list)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LAST_LINES))
    after: int = 0
    """Lines after the last traceback that show that the program continued."""
    not_finite: str = ""
    num_losses: int = 0
    """Lines with a finite loss before the first loss that is not finite."""
    nan_norms: list[str] = field(default_factory=list)
    """Lines with a gradient norm of NaN after the last one that is a number."""
    mismatch: tuple[str, str] | None = None
    trouble: list[str] = field(default_factory=list)
    watchdog: Watchdog = field(default_factory=Watchdog)
    crash: list[str] = field(default_factory=list)


def add_log(evidence: Evidence, text: str, name: str, rank_of_file: int | None) -> bool:
    """Add what a log says; return False if nothing in it is evidence."""
    streams: dict[int | None, _Stream] = {}
    reader, jobs, failures = TracebackReader(), JobLines(name), FailureTable(name)
    lines = list(_lines_by_rank(text, name))
    if {line.rank for line in lines} - {None, rank_of_file}:
        rank_of_file = None  # the output of a launcher: lines without a prefix are its own
    for line in lines:
        line = line if line.rank is not None or rank_of_file is None else replace(line, rank=rank_of_file)
        jobs.read(line.text)
        failures.read(line.text)
        _read_line(streams, line, reader)
        if evidence.log_reader is not None:
            evidence.log_reader.read(line)
    for traceback in reader.rest():
        _stream(streams, traceback.rank).tracebacks.append(traceback)
    jobs.add_to(evidence)
    failures.add_to(evidence)
    for rank, stream in streams.items():
        _add_stream(evidence, rank, stream, name)
    known = any(rank is not None for rank in streams) or any(stream.tracebacks for stream in streams.values())
    return known or jobs.found or failures.found


def _lines_by_rank(text: str, name: str) -> Iterator[LogLine]:
    """Yield the lines, each with the rank of its prefix."""
    for line in clean_lines(text.split("\n"), name):
        match = _FROG_PREFIX.match(line.text)
        yield replace(line, rank=int(match[1]), text=line.text[match.end() :]) if match else line


def _stream(streams: dict[int | None, _Stream], rank: int | None) -> _Stream:
    return streams.setdefault(rank if rank is None or rank < 2**20 else None, _Stream())


def _read_line(streams: dict[int | None, _Stream], line: LogLine, reader: TracebackReader) -> None:
    done, inside = reader.read(line)
    for traceback in done:
        _stream(streams, traceback.rank).tracebacks.append(traceback)
    stream, text = _stream(streams, line.rank), line.text
    stream.last_lines.append(text[:400])
    if done:
        stream.after = 0
    if text.startswith(("Fatal Python error", "Current thread 0x")) or (stream.crash and text.startswith("  File ")):
        stream.crash = [*stream.crash, text][:12]
    if inside:
        stream.after = 0
        return
    stream.watchdog.read(line)
    if not stream.mismatch and is_mismatch_text(text):
        stream.mismatch = text.strip()[:400], line.file
    if not _NOISE.search(text):
        stream.after += 1
        if not stream.not_finite and _A_LOSS.search(text):
            if _NOT_FINITE.search(text):
                stream.not_finite = text[:300]
            else:
                stream.num_losses += 1
        if "norm" in text and (norm := _NORM.search(text)):
            stream.nan_norms = [*stream.nan_norms, text[:300]][:2] if norm[1] else []
        if len(stream.trouble) < _MOST_TROUBLE and _TROUBLE.search(text):
            stream.trouble.append(text[:300])


def _add_stream(evidence: Evidence, number: int | None, stream: _Stream, name: str) -> None:
    errors = [error for traceback in stream.tracebacks if (error := seen_error(traceback, name)) is not None]
    if number is None:
        evidence.mismatch = evidence.mismatch or stream.mismatch
        evidence.loose_errors += errors[: _MOST_LOOSE - len(evidence.loose_errors)]
        for waiting in stream.watchdog.waiting:
            _add_watchdog(evidence, waiting, stream.watchdog, name)
        _add_signalled(evidence, stream.watchdog, name)
        return
    rank = evidence.of(number)
    rank.add_source(name)
    rank.last_lines = [*rank.last_lines, *stream.last_lines][-MOST_LAST_LINES:]
    if not rank.nan_line:
        rank.nan_line, rank.num_losses = stream.not_finite, rank.num_losses + stream.num_losses
    if len(stream.nan_norms) > 1:  # one alone may be an overflow, for which mixed precision skips the step
        rank.norm_line = stream.nan_norms[0]
    rank.crash = rank.crash or "\n".join(stream.crash)
    if rank.line is None and (frames := fault_frames("\n".join(stream.crash))):
        rank.stack, rank.line = frames, user_line(frames)
    rank.trouble += stream.trouble
    rank.mismatch = rank.mismatch or stream.mismatch
    may_have_failed = rank.state in (None, "failed") or rank.exit_code not in (None, 0)
    if rank.error is None and errors and stream.after == 0 and may_have_failed and not _went_on(rank, errors[-1]):
        rank.error = errors.pop()
    rank.caught += [
        replace(error, fatal=False) for error in errors if rank.state is None or not _is_end(error, rank.error)
    ]
    for waiting in stream.watchdog.waiting:
        _add_watchdog(evidence, waiting, stream.watchdog, name, number)
    _add_signalled(evidence, stream.watchdog, name, number)


def _went_on(rank: RankEvidence, error: SeenError) -> bool:
    """True if a rank was in a later collective when its launcher ended it: its program had caught the error."""
    is_later = bool(rank.pending) and not any(same_line(rank.pending[0].line, frame) for frame in error.frames)
    return rank.state == "running" and rank.exit_code == -signal.SIGTERM and is_later


def _is_end(error: SeenError, end: SeenError | None) -> bool:
    """True if an error in a log may be the one that ended its rank: of the same type, and raised at the same line."""
    if end is None or error.short_type != end.short_type:
        return False
    return error.line is None or end.line is None or same_line(error.line, end.line)


def _add_watchdog(evidence: Evidence, waiting: int, watchdog: Watchdog, name: str, prefix: int | None = None) -> None:
    """Add the collective in which NCCL's watchdog found a rank.

    prefix: the rank in front of the line, which counts; the one in the text may be a rank within a group.
    """
    work, rank = watchdog.waiting[waiting], evidence.of(waiting if prefix is None else prefix)
    group = GroupNames().find(watchdog.groups.get(waiting, "0"))
    rank.add_source(name)
    evidence.hung = True
    if not rank.has_calls and work.op:
        rank.calls.append(Call(group, work.seq, op_name(work.op), False, numel=work.numel, source=name))
    rank.enqueued.setdefault(group, max(work.seq, watchdog.enqueued.get(waiting, 0)))


def _add_signalled(evidence: Evidence, watchdog: Watchdog, name: str, prefix: int | None = None) -> None:
    """Add how far a rank was that did not time out itself, but was asked for a dump."""
    for number in watchdog.signalled & watchdog.enqueued.keys() - watchdog.waiting.keys():
        rank = evidence.of(number if prefix is None else prefix)
        rank.add_source(name)
        rank.enqueued.setdefault(GroupNames().find("0"), watchdog.enqueued[number])


# ---- exceptions of a text, as evidence -------------------------------------------------------------------------------

_CAUGHT_IN_WORKER = re.compile(
    r"Caught (\w+) in (DataLoader worker process \d+|replica \d[^\n]*?|pin memory thread[^\n]*?)\.?\n"
)
_ORIGIN = re.compile(r"^Original Traceback \(most recent call last\):\n(.*)", re.DOTALL | re.MULTILINE)
_WORKER_FRAME = re.compile(r'^\s*File "([^"\n]{1,4096})", line (\d{1,9}), in (.{1,200})$', re.MULTILINE)


def with_origin(error: SeenError) -> SeenError:
    """Return an exception that torch passed on from a DataLoader worker, with its line and message in the worker."""
    caught, origin = _CAUGHT_IN_WORKER.match(error.message), _ORIGIN.search(error.message)
    if caught is None or origin is None:
        return error
    frames = [
        CodeLine(file=file, line=int(line), function=name) for file, line, name in _WORKER_FRAME.findall(origin[1])
    ]
    _, _, message = origin[1].rpartition(f"\n{caught[1]}: ")
    message = f"{message.strip()} (in {caught[2]})" if message else error.message
    line = user_line(reversed(frames)) or error.line
    return replace(error, message=message, line=line, frames=(*error.frames, *frames))


def seen_error(traceback: Traceback, name: str) -> SeenError | None:
    """Convert a traceback; None if it is cut off before its exception."""
    if not traceback.type:
        return None
    frames = [CodeLine(file=each.file, line=each.line, function=each.function) for each in traceback.frames]
    line = user_line(reversed(frames)) or (frames[-1] if frames else None)
    return with_origin(SeenError(traceback.type, "\n".join(traceback.message)[:4096], line, tuple(frames), source=name))


def seen_errors(lines: Iterable[str], name: str) -> list[SeenError]:
    """Return the exceptions of a text."""
    reader = TracebackReader()
    done = [traceback for line in clean_lines(lines, name) for traceback in reader.read(line)[0]]
    return [error for each in (*done, *reader.rest()) if (error := seen_error(each, name)) is not None]


# ---- torchrun: the table of failures that ends its output, and the error file of a rank ------------------------------

_FAILURE_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*:\s?(.*)$")
_FAILED_RANK = re.compile(r"(\d{1,7}) \(local_rank: \d{1,7}\)")
_EXIT_CODE = re.compile(r"(-?\d{1,10}) \(pid: (\d{1,10})\)")


class _Failure(NamedTuple):
    """A block of the table."""

    code: int
    pid: int
    host: str
    ended_ns: int | None


def _unix_ns(text: str) -> int | None:
    """Return a time of the table, which has no zone: only differences between such times mean something."""
    try:
        at = dt.datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return int(at.timestamp()) * 10**9


class FailureTable:
    """The blocks below `ChildFailedError`: one per failed rank, the one that torchrun saw first last."""

    def __init__(self, name: str) -> None:
        self.name, self.found, self._named = name, False, False
        self._rank: int | None = None
        self._host = ""
        self._ended_ns: int | None = None
        self._codes: dict[int, _Failure] = {}

    def read(self, text: str) -> None:
        """Read a line of a log."""
        field = _FAILURE_FIELD.match(text)
        if field is None:
            self._named = self._named or "torch.distributed." in text or "torchrun" in text
            return
        key, value = field[1], field[2]
        if key == "time":
            self._ended_ns = _unix_ns(value.strip())
        elif key == "host":
            self._host = value.strip()[:255]
        elif key == "rank" and (rank := _FAILED_RANK.match(value)):
            self._rank = int(rank[1])
        elif key == "exitcode" and self._rank is not None and (code := _EXIT_CODE.match(value)):
            self._codes[self._rank] = _Failure(int(code[1]), int(code[2]), self._host, self._ended_ns)
            self._rank, self.found = None, True

    def add_to(self, evidence: Evidence) -> None:
        """Add the exit codes."""
        evidence.by_torchrun |= self.found or self._named
        for number, failure in self._codes.items():
            if number >= 2**20:
                continue
            rank = evidence.of(number)
            rank.add_source(self.name)
            rank.host = rank.host or failure.host or None
            if rank.exit_code is None:
                rank.exit_code, rank.pid, rank.exit_source = failure.code, rank.pid or failure.pid, self.name
                rank.exited_ns = rank.exited_ns or failure.ended_ns


def decode_error_file(data: bytes) -> dict[str, Any] | None:
    """Return the content of a file that TORCHELASTIC_ERROR_FILE names; None for any other data."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("message"), (dict, str)) else None


def error_text(value: dict[str, Any]) -> tuple[str, str, int | None]:
    """Return the message, the traceback's text and the Unix time of an error file."""
    message = value["message"]
    if isinstance(message, str):
        return message[:4096], "", None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stamp = str(extra.get("timestamp", ""))
    seconds = int(stamp) if re.fullmatch(r"\d{1,11}", stamp) else None
    return str(message.get("message", ""))[:4096], str(extra.get("py_callstack", ""))[: 1 << 20], seconds


def add_error_file(evidence: Evidence, value: dict[str, Any], name: str, rank_of_file: int | None) -> None:
    """Add a rank's error."""
    message, traceback, seconds = error_text(value)
    kind, _, rest = message.partition(":")
    seen = next(reversed(seen_errors(traceback.split("\n"), name)), None)
    if seen is None:
        seen = SeenError(kind if re.fullmatch(r"[\w.]{1,100}", kind) else "Error", rest.strip() or message)
    unix_ns = seconds * 10**9 if seconds is not None else None
    error = SeenError(seen.type, seen.message, seen.line, seen.frames, unix_ns, name)
    if rank_of_file is None:
        evidence.loose_errors.append(error)
        return
    rank = evidence.of(rank_of_file)
    rank.add_source(name)
    if rank.error is None or rank.error.line is None:
        rank.error = error


# ---- Slurm: the lines of its daemons and of srun, and the text of `sacct` --------------------------------------------

_STATES = (
    "OUT_OF_MEMORY", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "CANCELLED", "FAILED", "COMPLETED", "RUNNING", "BOOT_FAIL",
    "DEADLINE", "REQUEUED",
)  # fmt: skip
_STATE_LINES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("OUT_OF_MEMORY", re.compile(r"oom[-_ ]kill|Out Of Memory|Exceeded (job|step) memory limit|cgroup out-of-memory")),
    ("TIMEOUT", re.compile(r"CANCELLED AT \S+ DUE TO TIME LIMIT")),
    ("PREEMPTED", re.compile(r"CANCELLED AT \S+ DUE TO PREEMPTION")),
    ("NODE_FAIL", re.compile(r"CANCELLED AT \S+ DUE TO NODE FAILURE|Node failure on ")),
    ("CANCELLED", re.compile(r"CANCELLED AT \S+ (\*\*\*|DUE TO (SIGNAL|JOB))")),
)
_SPEAKER = re.compile(r"(^|\s)(slurmstepd|srun|slurmd|salloc|sbatch)(\[\S+\])?: ")
_TASK_ENDS = re.compile(r"srun: error: \S{1,255}: tasks? ([\d,-]{1,2000}): (.{1,120})")
_TASK_CODE = re.compile(r"Exited with exit code (\d{1,3})")
_SIGNAL_WORDS = {
    "Killed": -9,
    "Segmentation fault": -11,
    "Aborted": -6,
    "Bus error": -7,
    "Floating point exception": -8,
    "Illegal instruction": -4,
    "Terminated": -15,
    "Out Of Memory": -9,
}
_MOST_JOBS, _MOST_TASKS = 50, 2**20


class JobLines:
    """Slurm's lines in the output of a job."""

    def __init__(self, name: str) -> None:
        self.name, self.found = name, False
        self._jobs: list[JobState] = []
        self._codes: dict[int, int] = {}

    def read(self, text: str) -> None:
        """Read a line of a log."""
        if not _SPEAKER.search(text):
            return
        for state, pattern in _STATE_LINES:
            if pattern.search(text) and len(self._jobs) < _MOST_JOBS:
                self._jobs.append(JobState(state, self.name, text.strip()[:300]))
                self.found = True
                break
        if ends := _TASK_ENDS.search(text):
            self.found = True
            code = _task_code(ends[2])
            for task in _task_numbers(ends[1]) if code is not None else ():
                self._codes.setdefault(task, code or 0)

    def add_to(self, evidence: Evidence) -> None:
        """Add the states, and the exit codes of the tasks."""
        evidence.jobs += self._jobs
        for task, code in self._codes.items():
            evidence.tasks.setdefault(task, (code, self.name))


def _task_code(text: str) -> int | None:
    """Return Popen's code for `Exited with exit code 1` or `Killed`."""
    if match := _TASK_CODE.match(text):
        code = int(match[1])
        return 128 - code if 128 < code < 160 else code
    return next((code for word, code in _SIGNAL_WORDS.items() if text.startswith(word)), None)


def _task_numbers(text: str) -> list[int]:
    """Return the numbers of `0-2,5`."""
    tasks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = parse_whole(first), parse_whole(last or first)
        if low is not None and high is not None and high < _MOST_TASKS and 0 <= high - low < 10_000:
            tasks += range(low, high + 1)
    return tasks


def add_sacct(evidence: Evidence, text: str, name: str) -> bool:
    """Add the states of a job and its steps from `sacct`, with columns or with `-P`; False for any other text."""
    lines = [line for line in text.split("\n")[:5000] if line.strip()]
    for number, line in enumerate(lines[:20]):
        head = [word.strip() for word in (line.split("|") if "|" in line else line.split())]
        if "State" in head and ("JobID" in head or "JobIDRaw" in head or "JobName" in head):
            rows = lines[number + 1 :]
            states = [_sacct_row(head, row, lines, number) for row in rows if not set(row.strip()) <= {"-", " "}]
            jobs = [JobState(state, name, row.strip()[:300]) for state, row in states if state is not None]
            evidence.jobs += jobs[:_MOST_JOBS]
            return bool(jobs)
    return False


def _sacct_row(head: list[str], row: str, lines: list[str], number: int) -> tuple[str | None, str]:
    if "|" in row:
        cells = [cell.strip() for cell in row.split("|")]
        place = head.index("State")
        return _named_state(cells[place]) if place < len(cells) else None, row
    rule = lines[number + 1] if number + 1 < len(lines) else ""
    spans = [match.span() for match in re.finditer(r"-+", rule)] if set(rule.strip()) <= {"-", " "} else []
    if len(spans) == len(head):
        first, last = spans[head.index("State")]
        return _named_state(row[first:last].strip()), row
    states = (_named_state(word) for word in row.split())
    return next((state for state in states if state is not None), None), row


def _named_state(text: str) -> str | None:
    """Return the state that a cell names: columns cut it off, as in `OUT_OF_ME+`; `CANCELLED by 1000`."""
    word = text.split(" ")[0].rstrip("+")
    return next((state for state in _STATES if len(word) >= 4 and state.startswith(word)), None)
