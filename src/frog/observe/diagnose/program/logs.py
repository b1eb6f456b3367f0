"""Logs: of one rank, of several with their names in front of the lines, or of a whole job."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from frog.observe.diagnose.known_errors.lines import LogLine, clean_lines
from frog.observe.diagnose.known_errors.tracebacks import Traceback, TracebackReader
from frog.observe.diagnose.known_errors.watchdog import Watchdog
from frog.observe.diagnose.program.evidence import MOST_LAST_LINES, Call, Evidence, SeenError
from frog.observe.diagnose.program.group_names import GroupNames
from frog.observe.diagnose.program.places import user_line
from frog.observe.diagnose.program.recorder import op_name
from frog.observe.diagnose.program.seen_errors import seen_error
from frog.observe.diagnose.program.slurm import JobLines
from frog.observe.diagnose.program.stacks import fault_frames
from frog.observe.diagnose.program.torchrun import FailureTable
from frog.observe.diagnose.program.victims import is_mismatch_text

_OWN_PREFIX = re.compile(r"^rank (\d{1,6}) \| ?")
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
    lines = list(_lines(text, name))
    if {line.rank for line in lines} - {None, rank_of_file}:
        rank_of_file = None  # the output of a launcher: lines without a prefix are its own
    for line in lines:
        line = line if line.rank is not None or rank_of_file is None else replace(line, rank=rank_of_file)
        jobs.read(line.text)
        failures.read(line.text)
        _read(streams, line, reader)
    for traceback in reader.rest():
        _stream(streams, traceback.rank).tracebacks.append(traceback)
    jobs.add_to(evidence)
    failures.add_to(evidence)
    for rank, stream in streams.items():
        _add(evidence, rank, stream, name)
    known = any(rank is not None for rank in streams) or any(stream.tracebacks for stream in streams.values())
    return known or jobs.found or failures.found


def _lines(text: str, name: str) -> Iterator[LogLine]:
    """Yield the lines, each with the rank of its prefix."""
    for line in clean_lines(text.split("\n"), name):
        found = _OWN_PREFIX.match(line.text)
        yield replace(line, rank=int(found[1]), text=line.text[found.end() :]) if found else line


def _stream(streams: dict[int | None, _Stream], rank: int | None) -> _Stream:
    return streams.setdefault(rank if rank is None or rank < 2**20 else None, _Stream())


def _read(streams: dict[int | None, _Stream], line: LogLine, reader: TracebackReader) -> None:
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


def _add(evidence: Evidence, number: int | None, stream: _Stream, name: str) -> None:
    errors = [error for traceback in stream.tracebacks if (error := seen_error(traceback, name)) is not None]
    if number is None:
        evidence.mismatch = evidence.mismatch or stream.mismatch
        evidence.loose_errors += errors[: _MOST_LOOSE - len(evidence.loose_errors)]
        for waiting in stream.watchdog.waiting:
            _add_watchdog(evidence, waiting, stream.watchdog, name)
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
    if rank.error is None and errors and stream.after == 0 and may_have_failed:
        rank.error = errors.pop()
    rank.caught += [
        replace(error, fatal=False) for error in errors if rank.state is None or not _is_end(error, rank.error)
    ]
    for waiting in stream.watchdog.waiting:
        _add_watchdog(evidence, waiting, stream.watchdog, name, number)


def _is_end(error: SeenError, end: SeenError | None) -> bool:
    return end is not None and error.short_type == end.short_type


def _add_watchdog(evidence: Evidence, waiting: int, watchdog: Watchdog, name: str, prefix: int | None = None) -> None:
    """Add the collective in which NCCL's watchdog found a rank.

    prefix: the rank in front of the line, which counts; the one in the text may be a rank within a group.
    """
    found, rank = watchdog.waiting[waiting], evidence.of(waiting if prefix is None else prefix)
    group = GroupNames().find(watchdog.groups.get(waiting, "0"))
    rank.add_source(name)
    evidence.hung = True
    if not rank.has_calls:
        rank.calls.append(Call(group, found.seq, op_name(found.op), False, numel=found.numel, source=name))
    rank.enqueued.setdefault(group, max(found.seq, watchdog.enqueued.get(waiting, 0)))
