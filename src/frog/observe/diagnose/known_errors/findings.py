"""What a reader finds in a log: lines and tracebacks that the table knows, other exceptions, and which came first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from frog.observe.diagnose.known_errors.kinds import Meaning, meaning_of
from frog.observe.diagnose.known_errors.lines import LogLine
from frog.observe.diagnose.known_errors.table.known import KnownError, Level
from frog.observe.diagnose.known_errors.tracebacks import CARRIES, Frame

FATAL = "fatal error"
"""Instead of an exception's class: a record after which a library aborts."""
OWN = "the program's own message"
"""Instead of an exception's class: another message of the program."""
HIDDEN = "exception of another process"
"""Instead of an exception's class: a launcher names it, but the log lacks its text."""
HANGS = ("collective-timeout", "watchdog-stuck", "horovod-stall")
_ENDS = ("slurm-time-limit", "slurm-preempted", "hang-up")
"""Ids of ends from outside, which also befall a job that hangs."""
BY_HAND = "cancelled"
_AFTER_CANCEL = ("host-out-of-memory", "loader-worker-killed", "killed", "out-of-memory")
"""Ids of ends that Slurm also reports of the processes of a job that a user stopped."""
_DEATHS = ("killed", "ray-worker-died", "bus-error", "segmentation-fault", "floating-point-exception")
"""Ids of symptoms that a process ended by itself, which explain that others lost the connection to it."""
_CRASHES = ("bus-error", "segmentation-fault", "floating-point-exception", "illegal-instruction")
"""Ids of symptoms that a process causes itself."""
_ONLY_ENDED = ("dataloader-worker-died", "dataloader-worker-lost", "helper-process-gone", "ray-worker-died")
"""Ids of symptoms that only say that a process ended."""
_NAMED = re.compile(r"^(?:[a-z_]\w{0,60}\.){0,8}(?P<type>[A-Z]\w{1,80}(?:Error|Exception)): ")
"""An exception at the beginning of a program's own message."""
_CARRIED = re.compile(
    rf"\b{CARRIES}\s{{1,4}}(?P<type>(?:\w{{1,60}}\.){{0,8}}\w{{1,80}}(?:Error|Exception)): (?P<message>\S[\s\S]*)"
)
"""Another exception in the message of one, as torch.compile puts it."""


_BARE = (
    (re.compile(r"^\W{0,4}[\w.]{1,80}\(\) (?:got|missing|takes) |^\W{0,4}'[\w.]{1,80}' object is not "), "TypeError"),
    (re.compile(r" has no attribute '"), "AttributeError"),
    (re.compile(r"^\W{0,4}name '\w{1,80}' is not defined"), "NameError"),
)
"""Python's own words without the class of their exception."""


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
    source: str = ""
    """The source line of `frame`, if the log has it."""
    innermost: str = ""
    """The frame that raised, as "file in function"."""
    stage: str = ""
    """What the program did when it raised, as a clause."""

    @property
    def meaning(self) -> Meaning | None:
        """What it means by its kind, if the table does not know it, or knows it in general only."""
        if self.exception == HIDDEN or not (self.known.kinds if self.known else self.exception):
            return None
        name, message = self.exception or OWN, self.text.partition(": ")[2]
        if name in (FATAL, OWN):
            named = _NAMED.match(self.text)
            bare = next((type for words, type in _BARE if words.search(self.text)), "")
            name, message = (named["type"], message) if named else (bare, self.text)
        only = self.known.kinds if self.known else ()
        if (carried := _CARRIED.search(message)) and not only:
            inner = meaning_of(carried["type"].rpartition(".")[2], carried["message"])
            if inner is not None:
                return inner
        place = re.split(r"[/\\]", self.innermost)[-1]  # a folder may have any name
        return meaning_of(name, message, f"{self.source}\n{place}", only)

    @property
    def id(self) -> str:
        return self.known.id if self.known else "exception"


def in_time(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Turn into symptoms what cannot be why the ranks of an earlier hang waited, or why a user stopped the job.

    These are ends that follow from a hang, and exceptions that the table does not know; but an exception of a rank
    that did not time out itself keeps its level, because its lines may have been written late.
    """
    timed_out: dict[str, set[int | None]] = {}
    stopped: set[str] = set()
    for finding in findings:
        ranks = timed_out.setdefault(finding.line.file, set())
        unknown = finding.known is None and (finding.rank is None or finding.rank in ranks)
        follows = bool(ranks) and (unknown or finding.id in _ENDS)
        if follows or (finding.line.file in stopped and finding.id in _AFTER_CANCEL):
            yield replace(finding, level=max(finding.level, Level.SYMPTOM))
            continue
        if finding.id in HANGS:
            ranks.add(finding.rank)
        if finding.id == BY_HAND:
            stopped.add(finding.line.file)
        yield finding


def first_cause(findings: Sequence[Finding], shown: Sequence[Finding]) -> Finding | None:
    """Return the first finding of the lowest level, or a warning that explains it.

    shown: all findings, also those that are no answer by themselves.
    """
    level = min((finding.level for finding in findings), default=None)
    candidates = [finding for finding in findings if finding.level is level]
    first = _first(candidates)
    if level is Level.CAUSE and first and first.known and first.known.yields:
        earlier = [*_until(first, shown)]
        death = _first([finding for finding in earlier if finding.id in _DEATHS and finding.level is Level.SYMPTOM])
        first = _first([finding for finding in candidates if _ends_a_rank(finding)]) or death or first
    if level is Level.SYMPTOM and first and first.id in _ONLY_ENDED:
        first = _first([finding for finding in candidates if finding.id in _CRASHES]) or first
    asides = [finding for finding in shown if finding.level is Level.ASIDE]
    warnings = [
        finding for finding in (*findings, *asides) if first and finding.known and first.id in finding.known.explains
    ]
    warning = _first(warnings)
    if first is None or warning is None or warning.level is not Level.ASIDE:
        return warning or first
    return replace(warning, level=first.level)


def _until(last: Finding, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Return the findings of the same file that come before one."""
    return (each for each in findings if each.line.file == last.line.file and each.line.number < last.line.number)


def rival_of(cause: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """Return a known cause of another kind, of another rank or process, that does not follow from the first one."""
    if cause is None or cause.known is None or cause.level is not Level.CAUSE:
        return None
    others = (each for each in findings if each.level is Level.CAUSE and each.id != cause.id and _ends_a_rank(each))
    return next((each for each in others if each.known is not None and _may_be_first(cause, each)), None)


def _may_be_first(cause: Finding, other: Finding) -> bool:
    """True for the errors of two streams whose order in the text says little about their order in time."""
    if cause.moment is not None and other.moment is not None and cause.moment != other.moment:
        return False
    return cause.rank != other.rank or cause.line.file != other.line.file


def _ends_a_rank(finding: Finding) -> bool:
    """True for a known cause that can be why other ranks lost this one."""
    return finding.known is not None and not finding.known.yields and finding.id not in _ENDS


def is_answer(finding: Finding, failed: bool) -> bool:
    """False for words shown only with an answer, and for a remark that matters only in the log of a job that failed."""
    if finding.level is Level.ASIDE or failed or not finding.is_remark:
        return finding.level is not Level.ASIDE
    return finding.known is not None and (finding.known.level is Level.HINT or bool(finding.known.explains))


def _first(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding: by time if they are in several files with times, else by line."""
    if len({finding.line.file for finding in findings}) > 1 and all(finding.moment for finding in findings):
        return min(findings, key=lambda finding: finding.moment or "")
    return findings[0] if findings else None
