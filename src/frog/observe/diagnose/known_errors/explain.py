"""Explain a job's log: the first cause, apart from what followed from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from frog.observe.diagnose.known_errors.lines import LogLine, clean_lines
from frog.observe.diagnose.known_errors.table import known_errors
from frog.observe.diagnose.known_errors.table.known import KnownError, Level
from frog.observe.diagnose.known_errors.tracebacks import BEGIN, Frame, Traceback, TracebackReader
from frog.observe.diagnose.known_errors.watchdog import Watchdog

_MOST_FINDINGS = 2000
_LOOKS_LIKE_ERROR = re.compile(
    r"\b(?:error|exception|fatal|failed|failure|abort(?:ed|ing)?|killed|cannot)\b", re.IGNORECASE
)
_REMARK = re.compile(
    r"\b(?:User|Future|Runtime|Deprecation|Resource|Import)Warning\b|\bNCCL INFO\b|\[(?:INFO|DEBUG)\]|^I\d{4} "
    r"|^size mismatch for "
)
"""Marks a line that its program does not take for an error; without its indent, a size mismatch is mmcv's warning."""
_FAILED_RANK = re.compile(r"^\s*rank\s*: (\d{1,6}) \(local_rank: \d+\)")
_EXCEPTION = re.compile(r"(?:[a-z_]\w{0,40}\.){1,8}[A-Z]\w{2,80}: ")
"""The full name of a class at the beginning of a line, as where a traceback ends."""
_SIGNAL_HANDLER = re.compile(r"sig\w{0,20}_handler|handle_sig")
"""A function that runs because the process is ended from outside: what fails in it only follows."""
_TIME_OUT = re.compile(r"Timeout(?:Error|Expired|Exception)?$|TimedOut")
_HANGS = ("collective-timeout", "watchdog-stuck", "horovod-stall")
_ENDS = ("slurm-time-limit", "slurm-preempted", "hang-up")
"""Ids of ends from outside, which also befall a job that hangs."""
_ROOT_CAUSE = "Root Cause (first observed failure)"


@dataclass(frozen=True)
class Finding:
    """A line of the log, or a traceback, that the table knows; or an exception that it does not."""

    line: LogLine
    known: KnownError | None
    level: Level
    rank: int | None
    text: str
    exception: str | None = None
    """The class of the exception, if it is the end of a traceback."""
    frame: Frame | None = None
    """The user's innermost line."""
    is_remark: bool = False
    """True if the program itself does not take the line for an error."""
    moment: str | None = None
    """The last time of day in the file up to this line."""

    @property
    def id(self) -> str:
        return self.known.id if self.known else "exception"


@dataclass
class Explanation:
    """The first cause in a log, and what else was found."""

    cause: Finding | None = None
    """None if nothing in the log explains the failure."""
    details: list[str] = field(default_factory=list)
    """Sentences about hangs: who waited in which collective."""
    reported_rank: int | None = None
    """The rank that the launcher names as the first that failed."""
    others: list[Finding] = field(default_factory=list)
    """Further findings of other kinds, at most eight."""
    consequences: dict[str, int] = field(default_factory=dict)
    """Number of lines that follow from the failure of another process, by id."""
    unknown: list[LogLine] = field(default_factory=list)
    """The last lines that look like an error, if there is no cause."""
    cut: bool = False
    """True if a traceback begins, but the log lacks its exception."""
    lines: int = 0

    @property
    def rank(self) -> int | None:
        """The rank with the cause; None if it is unknown, as in a hang, where each rank that reports only waited."""
        if self.cause is None or self.details:
            return None
        return self.cause.rank if self.cause.rank is not None else self.reported_rank

    @property
    def certain(self) -> bool:
        """True if the log shows the cause itself."""
        found = self.cause
        return found is not None and found.level is Level.CAUSE and (found.known is None or found.known.sure)

    @property
    def only_a_warning(self) -> bool:
        """True if the log does not show that the job failed."""
        return self.cause is not None and self.cause.level is Level.HINT and not self.consequences

    def as_json(self) -> dict[str, Any]:
        return {
            "cause": _as_json(self.cause),
            "rank": self.rank,
            "certain": self.certain,
            "details": self.details,
            "others": [_as_json(found) for found in self.others],
            "consequences": self.consequences,
            "unknown": [{"file": line.file, "line": line.number, "text": line.text} for line in self.unknown],
            "lines": self.lines,
        }


def _as_json(found: Finding | None) -> dict[str, Any] | None:
    if found is None:
        return None
    known = found.known
    return {
        "id": found.id,
        "level": found.level.name.lower(),
        "rank": found.rank,
        "file": found.line.file,
        "line": found.line.number,
        "text": found.text,
        "exception": found.exception,
        "users_line": str(found.frame) if found.frame else None,
        "cause": known.cause if known else None,
        "advice": known.advice if known else None,
        "section": known.section if known else None,
    }


def explain_log(lines: Iterable[str], file: str = "") -> Explanation:
    """Explain one log."""
    return explain_lines(clean_lines(lines, file))


def explain_lines(lines: Iterable[LogLine]) -> Explanation:
    """Explain the lines of one or several logs, which must be in order within each file."""
    reader = _Reader()
    for line in lines:
        reader.read(line)
    return reader.explanation()


class _Reader:
    """Collects findings line by line, in bounded memory."""

    def __init__(self) -> None:
        self.known_errors = known_errors()
        self.tracebacks, self.watchdog = TracebackReader(), Watchdog()
        self.findings: list[Finding] = []
        self.consequences: Counter[str] = Counter()
        self.unknown: list[LogLine] = []
        self.lines, self.cut, self.after_root_cause = 0, False, False
        self.reported_rank: int | None = None
        self.by_torchrun = False
        self.moments: dict[str, str] = {}

    def read(self, line: LogLine) -> None:
        self.lines += 1
        if line.moment is not None:
            self.moments[line.file] = line.moment
        done, belongs = self.tracebacks.read(line)
        for traceback in done:
            self._end(traceback)
        if belongs and BEGIN in line.text:  # what stands before it in the same line
            line, belongs = replace(line, text=line.text.partition(BEGIN)[0]), False
        if not belongs and line.text and not line.text.startswith("│"):  # code in a box that is cut
            self._read_line(line)

    def _read_line(self, line: LogLine) -> None:
        self.watchdog.read(line)
        self._read_launcher(line.text)
        known = self.known_errors.find(line.text)
        if known is not None:
            is_remark = _REMARK.search(line.text) is not None
            is_exception = _EXCEPTION.match(line.text) is not None
            level = max(known.level_of(is_exception), Level.HINT if is_remark else Level.CAUSE)
            self._add(Finding(line, known, level, line.named_rank, line.text.strip(), is_remark=is_remark))
        elif _LOOKS_LIKE_ERROR.search(line.text):
            self.unknown = [*self.unknown[-4:], line]

    def _read_launcher(self, text: str) -> None:
        """Read the rank that torchrun names as the first that failed."""
        self.by_torchrun = self.by_torchrun or "torchrun" in text or "torch/distributed/elastic" in text
        if _ROOT_CAUSE in text:
            self.after_root_cause = True
        elif self.after_root_cause and (found := _FAILED_RANK.match(text)):
            self.reported_rank, self.after_root_cause = int(found[1]), False

    def _end(self, traceback: Traceback) -> None:
        """Add the most likely cause of a chain of tracebacks."""
        if traceback.is_ignored:
            return
        findings = [self._finding(one) for one in traceback.chain if one.type and not one.is_bare_wrapper]
        if not findings:
            self.cut = True
            return
        known = [found for found in findings if found.known is not None and found.level is Level.CAUSE]
        self._add((known or findings)[0])

    def _finding(self, traceback: Traceback) -> Finding:
        known = self.known_errors.find(traceback.text)
        level = known.level_of(in_traceback=True) if known else _level_of_unknown(traceback)
        if traceback.is_remark:
            level = max(level, Level.HINT)
        line = traceback.end or traceback.begin
        return Finding(
            line, known, level, traceback.rank, traceback.text.strip(), traceback.name, traceback.users_frame,
            traceback.is_remark,
        )  # fmt: skip

    def _add(self, found: Finding) -> None:
        if found.level is Level.CONSEQUENCE:
            self.consequences[found.id] += 1
        elif len(self.findings) < _MOST_FINDINGS:
            self.findings.append(replace(found, moment=self.moments.get(found.line.file)))

    def explanation(self) -> Explanation:
        for traceback in self.tracebacks.rest():
            self._end(traceback)
        failed = bool(self.consequences) or self.cut
        cause = first_cause([found for found in _in_time(self.findings) if _is_answer(found, failed)])
        if cause is not None:
            cause = replace(cause, rank=self._rank_of(cause))
        others: dict[str, Finding] = {}
        for found in self.findings:
            if cause is None or found.id != cause.id:
                others.setdefault(found.id, found)
        hang = cause is not None and cause.level is Level.SYMPTOM
        return Explanation(
            cause,
            self.watchdog.sentences() if hang else [],
            self.reported_rank,
            list(others.values())[:8],
            dict(self.consequences),
            [] if cause else self.unknown,
            self.cut,
            self.lines,
        )

    def _rank_of(self, cause: Finding) -> int | None:
        """Return the rank of the cause: srun names the task that slurmstepd does not name.

        Below torchrun, a task of srun is a node, not a rank.
        """
        own = None if _names_task(cause) and self.by_torchrun else cause.rank
        if own is not None or self.by_torchrun:
            return own
        same = [found for found in self.findings if found.id == cause.id and found.line.file == cause.line.file]
        tasks = {found.rank for found in same if _names_task(found) and found.rank is not None}
        return tasks.pop() if len(tasks) == 1 else None


def _names_task(found: Finding) -> bool:
    return found.text.startswith("srun: error: ")


def _level_of_unknown(traceback: Traceback) -> Level:
    """Return the level of an exception that the table does not know."""
    if any(_SIGNAL_HANDLER.search(frame.function) for frame in traceback.frames):
        return Level.CONSEQUENCE
    bare = not traceback.frames and not traceback.before
    shows_only_that = bare or traceback.wraps_another or _TIME_OUT.search(traceback.name)
    return Level.SYMPTOM if shows_only_that else Level.CAUSE


def _in_time(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Turn into symptoms what cannot be why the ranks of an earlier hang waited.

    These are ends that follow from a hang, and exceptions that the table does not know; but an exception of a rank
    that did not time out itself keeps its level, because its lines may have been written late.
    """
    timed_out: dict[str, set[int | None]] = {}
    for found in findings:
        ranks = timed_out.setdefault(found.line.file, set())
        unknown = found.known is None and (found.rank is None or found.rank in ranks)
        if ranks and (unknown or found.id in _ENDS):
            yield replace(found, level=max(found.level, Level.SYMPTOM))
            continue
        if found.id in _HANGS:
            ranks.add(found.rank)
        yield found


def first_cause(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding of the lowest level, or an earlier warning that explains it."""
    level = min((found.level for found in findings), default=None)
    candidates = [found for found in findings if found.level is level]
    first = _first(candidates)
    if level is Level.CAUSE and first and first.known and first.known.yields:
        first = _first([found for found in candidates if _ends_a_rank(found)]) or first
    warnings = [found for found in findings if first and found.known and first.id in found.known.explains]
    return _first(warnings) or first


def _ends_a_rank(found: Finding) -> bool:
    """True for a known cause that can be why other ranks lost this one."""
    return found.known is not None and not found.known.yields and found.id not in _ENDS


def _is_answer(found: Finding, failed: bool) -> bool:
    """False for words shown only with an answer, and for a remark that matters only in the log of a job that failed."""
    if found.level is Level.ASIDE or failed or not found.is_remark:
        return found.level is not Level.ASIDE
    return found.known is not None and (found.known.level is Level.HINT or bool(found.known.explains))


def _first(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding: by time if they are in several files with times, else by line."""
    if len({found.line.file for found in findings}) > 1 and all(found.moment is not None for found in findings):
        return min(findings, key=lambda found: found.moment or "")
    return findings[0] if findings else None
