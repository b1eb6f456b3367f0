"""Explain a job's log: the first cause, apart from what followed from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from frog.observe.diagnose.known_errors.findings import (
    BY_HAND,
    FATAL,
    HANGS,
    HIDDEN,
    OWN,
    Finding,
    first_cause,
    in_time,
    is_answer,
    rival_of,
)
from frog.observe.diagnose.known_errors.kinds import stage_of
from frog.observe.diagnose.known_errors.lines import LogLine, clean_lines
from frog.observe.diagnose.known_errors.own_messages import RECORDS, OwnMessages
from frog.observe.diagnose.known_errors.progress import Progress
from frog.observe.diagnose.known_errors.questions import MOST_LINES
from frog.observe.diagnose.known_errors.table import known_errors
from frog.observe.diagnose.known_errors.table.known import KnownError, Level
from frog.observe.diagnose.known_errors.tracebacks import BEGIN, RECORD, WRAPS, Frame, Traceback, TracebackReader
from frog.observe.diagnose.known_errors.watchdog import Watchdog

_MOST_FINDINGS = 2000
_MOST_WARNINGS = 3
_ERRORS_OF_NCCL = ("nccl-error", "nccl-internal-error", "nccl-system-error", "nccl-invalid-usage", "nccl-cuda-error")
"""Ids of errors of which NCCL's warnings before them say more."""
_LOOKS_LIKE_ERROR = re.compile(
    r"\b(?:error|exception|fatal|failed|failure|abort(?:ed|ing)?|killed|cannot)\b", re.IGNORECASE
)
_REMARK = re.compile(
    r"\b(?:User|Future|Runtime|Deprecation|Resource|Import)Warning\b|\bNCCL INFO\b|\[(?:INFO|DEBUG)\]|^I\d{4} "
    r"|^size mismatch for |^\[NeMo [IWD] |^(?:INFO|DEBUG)[: ]| - (?:INFO|DEBUG) - |\| (?:INFO|DEBUG) +\|"
    r"|\blevel=(?:info|debug)\b|\"level(?:name)?\": ?\"(?:info|INFO|debug|DEBUG)\""
)
"""Marks a line that its program does not take for an error; without its indent, a size mismatch is mmcv's warning."""
_WARNING = re.compile(r"\bWARNING\b|\blevel=warn|(?<!CCL )(?<!\d )\bWARN\b|^\[?W\d{3,4} \d\d:|^\[W \S+\.cpp:")
"""Marks a line that its program takes for a warning: what it names can be a cause, but did not end it there."""
_QUOTED_CODE = re.compile(
    r"^\s*(?:"
    r"(?:[+$] )?(?:(?:export|setenv|declare -x) )?[A-Z][A-Z0-9_]{2,80}=\S|#(?:SBATCH|PBS|!)|(?:[+$] )?export \w"
    r"|raise \w|assert [^,]|except\b.{0,200}:\s*$|(?:el)?if .{1,200}:\s*$|def \w"
    r"|(?:logger|logging|log|warnings)\.\w+\(|print\()"
)
"""A line of a script, of its settings or of source code: it quotes a message, but nothing printed it."""
_FAILED_LOCAL_RANK = re.compile(r"failed \(exitcode: -?\d{1,10}\) local_rank: (\d{1,6})")
_LOSS = re.compile(
    r"\b[\w/]{0,40}loss(?:\b[\"']?(?: is|\]?\s?[:=|])?\s{0,4}(?:tensor\()?(?:nan|-?inf(?:inity)?)\b)", re.IGNORECASE
)
"""The loss of a step, as it becomes NaN or infinite."""
_LEAST_LOSS = re.compile(
    r"(?:\b|_)(?:best|min|minimum|lowest|prev|previous)[ _/-]"
    r"(?:(?:val|valid|validation|eval|test|train|training)[ _/-])?loss",
    re.IGNORECASE,
)
"""A loss of earlier steps: before the first one, it is often infinite."""
_FAILED_RANK = re.compile(r"^\s*rank\s*: (\d{1,6}) \(local_rank: \d+\)")
_EXCEPTION = re.compile(r"(?:[a-z_]\w{0,40}\.){1,8}[A-Z]\w{2,80}: ")
"""The full name of a class at the beginning of a line, as where a traceback ends."""
_SIGNAL_HANDLER = re.compile(r"sig\w{0,20}_handler|handle_sig")
"""A function that runs because the process is ended from outside: what fails in it only follows."""
_NOT_THE_ERROR = re.compile(
    r"not the (?:actual|real|root|original) (?:error|cause)|look (?:further )?above|(?:look|scroll) further up"
    r"|see (?:the )?(?:error|message|traceback)s? above",
    re.IGNORECASE,
)
"""An exception says that another one, earlier in the log, is the error."""
_TIME_OUT = re.compile(r"Timeout(?:Error|Expired|Exception)?$|TimedOut")
_MANY = 10
"""Number of equal warnings after which they explain why a user stopped the job."""
_SUMMARY = "launcher-summary"
_LAUNCHERS = re.compile(
    r"ChildFailed|CalledProcess|Process(?:Exited|Raised)|RayTask|Tune|TrainingFailed|SignalException|SystemExit|Checkpoint"
    r"|ExecuteUserScript|UnexpectedStatus|BackoffLimit"
)
"""Names of exceptions with which a launcher reports the end of another process."""
_TOOL = re.compile(
    r"^(?:\w+\.)*CalledProcessError: Command ['\"\[]{1,3}(?:[\w./-]{0,200}/)?"
    r"(?P<tool>ssh|pdsh|scp|rsync|git|wget|curl|nvidia-smi|rocm-smi|nvcc|g\+\+|gcc|c\+\+|cmake|make|ldconfig|which|where|tar"
    r"|unzip|ffmpeg|hostname|scontrol|sbatch|salloc|qsub|bsub|kubectl|docker|pip|conda|gcloud|aws)\b"
)
"""A tool that a program calls for itself: its failure is the program's own, not that of a process of the job."""
_FATAL = re.compile(
    r"^(?:\[?F\d{4}\d{0,4} \d\d:\d\d:\d\d\.\d{1,9} {1,8}(?:\d{1,9} )?|C \d{1,9} \d{1,9}\] (?:\(\w{1,40}\) )?"
    r"|F (?=\S{1,200}\.\w{1,4}:\d))"
    r"(?P<file>[^\s:]{1,200}):(?P<line>\d{1,7})(?:\]|:) {1,4}(?P<message>\S.{0,600})"
)
"""A record of glog's or TensorFlow's level FATAL, or of Ray's C: the library that writes it aborts its process."""
_MOST_FATAL_LINES = 3
"""Most further lines of such a record."""
_RAISES = re.compile(r"^(?:(?P<check>assert) \S|raise (?P<type>(?:\w+\.){0,4}[A-Z]\w{2,60}(?:Error|Exception))\()")
"""A source line that can only raise."""
_ROOT_CAUSE = "Root Cause (first observed failure)"
_QUOTED = re.compile(r"\b\w+(?:Error|Exception): ")
"""An exception with its message, anywhere in a line."""
_IN_QUOTES = re.compile(
    r"[`'\"](?P<type>(?:[a-z_]\w*\.)*[A-Z]\w{2,80}(?:Error|Exception)): (?!Caught \w+ in )(?P<message>[^`\n]{3,300})"
)
"""An exception in quotation marks, as a sentence names it."""
_HIDDEN = re.compile(
    r"RayTaskError\((?P<type>[A-Z]\w{2,80})\): ray::(?P<task>[\w.]{1,200})"
    r"|User exception type <class '(?:\w+\.)*(?P<other>\w{2,80})'> in RayTaskError"
)
"""Ray's name for the exception of a task, without its text."""
_OTHER_FAILURES = re.compile(r"^\s*Failures:\s*$")
_FAILED_AT = re.compile(r"^\s*time\s*: \d{4}-(\d\d-\d\d)_(\d\d:\d\d:\d\d)$")


@dataclass
class Explanation:
    """The first cause in a log, and what else was found."""

    cause: Finding | None = None
    """None if nothing in the log explains the failure."""
    details: list[str] = field(default_factory=list)
    """Sentences about hangs: who waited in which collective."""
    reported_rank: int | None = None
    """The rank that the launcher names as the first that failed."""
    reported_local_rank: int | None = None
    """The same as a number on its node, if the launcher names no other."""
    others: list[Finding] = field(default_factory=list)
    """Further findings of other kinds, at most eight."""
    consequences: dict[str, int] = field(default_factory=dict)
    """Number of lines that follow from the failure of another process, by id."""
    unknown: list[LogLine] = field(default_factory=list)
    """The last lines that look like an error, if there is no cause."""
    cut: bool = False
    """True if a traceback begins, but the log lacks its exception."""
    lines: int = 0
    files: int = 0
    last_step: str = ""
    """The last step of the program, such as "500 of 500", if the log ends there."""
    first_traceback: Finding | None = None
    """The first traceback that does not count as a cause, or of which the log lacks the exception."""
    description: str = ""
    """The whole text, if it is short enough to be a description and shows no failure."""
    suspect: int | None = None
    """The one rank of a hang that is behind, absent or different."""
    abridged: bool = False
    """True if the log leaves out lines that other processes wrote too, so that a missing line says nothing."""
    rival: Finding | None = None
    """A known cause of another kind in the same log, which may be the first one as well."""
    warned: list[LogLine] = field(default_factory=list)
    """NCCL's first warnings, if the cause is an error that it explains only there."""

    @property
    def rank(self) -> int | None:
        """The rank with the cause; None if it is unknown, as in a hang, where each rank that reports only waited."""
        if self.cause is None or self.details:
            return None
        return self.cause.rank if self.cause.rank is not None else self.reported_rank

    @property
    def certain(self) -> bool:
        """True if the log shows the cause itself."""
        cause = self.cause
        if cause is None or cause.level is not Level.CAUSE or self.rival is not None:
            return False
        return cause.known is None or (cause.known.sure and not self.may_be_behind)

    @property
    def may_be_behind(self) -> bool:
        """True if a traceback that is cut may be the cause, not the line that counts as it."""
        cause = self.cause
        return self.cut and cause is not None and cause.level is Level.CAUSE and cause.exception is None

    @property
    def only_a_warning(self) -> bool:
        """True if the log does not show that the job failed."""
        cause = self.cause
        if cause is None or cause.known is None or cause.level is not Level.HINT or self.consequences:
            return False
        return cause.is_remark or cause.known.level is Level.HINT or cause.known.alone is None

    def as_json(self) -> dict[str, Any]:
        return {
            "cause": _as_json(self.cause),
            "rank": self.rank,
            "certain": self.certain,
            "details": self.details,
            "others": [_as_json(other) for other in self.others],
            "consequences": self.consequences,
            "unknown": [{"file": line.file, "line": line.number, "text": line.text} for line in self.unknown],
            "lines": self.lines,
        }


def _as_json(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None:
        return None
    known = finding.known
    meaning = finding.meaning
    return {
        "id": finding.id,
        "level": finding.level.name.lower(),
        "rank": finding.rank,
        "file": finding.line.file,
        "line": finding.line.number,
        "text": finding.text,
        "exception": finding.exception,
        "users_line": str(finding.frame) if finding.frame else None,
        "kind": meaning.id if meaning else None,
        "cause": meaning.says if meaning else known.cause if known else None,
        "advice": meaning.advice if meaning else known.advice if known else None,
        "section": known.section if known else None,
    }


def explain_log(lines: Iterable[str], file: str = "") -> Explanation:
    """Explain one log."""
    return explain_lines(clean_lines(lines, file))


def explain_lines(lines: Iterable[LogLine]) -> Explanation:
    """Explain the lines of one or several logs, which must be in order within each file."""
    reader = LogReader()
    for line in lines:
        reader.read(line)
    return reader.explanation()


class LogReader:
    """Collects findings line by line, in bounded memory."""

    def __init__(self) -> None:
        self.known_errors = known_errors()
        self.tracebacks, self.watchdog, self.progress = TracebackReader(), Watchdog(), Progress()
        self.findings: list[Finding] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        """Number of findings by file and id."""
        self.consequences: Counter[str] = Counter()
        self.unknown: list[LogLine] = []
        self.signal: Finding | None = None
        """The first line in which a rank reports that another one timed out."""
        self.first_traceback: Finding | None = None
        self.cut_traceback: Finding | None = None
        """The first traceback without an exception that has a line of the user's."""
        self.own = OwnMessages()
        self.fatal_lines = 0
        """Number of lines that may still belong to the last finding, a fatal record."""
        self.hidden: Finding | None = None
        """The last exception of which a launcher names the class only."""
        self.error_before: LogLine | None = None
        """The line before this one, if it is an error's message."""
        self.quoted: Finding | None = None
        """The first exception that a sentence quotes and that the table does not know."""
        self.warned: list[LogLine] = []
        """The first warnings of NCCL that are of no known error."""
        self.lines, self.cut, self.after_root_cause = 0, False, False
        self.in_other_failures = False
        """True below torchrun's heading of the failures that were not the first."""
        self.reported_rank: int | None = None
        self.reported_local_rank: int | None = None
        self.by_torchrun = False
        self.moments: dict[str, str] = {}
        self.files: set[str] = set()
        self.beginning: list[str] = []
        """The first lines, which may be a description instead of a log."""

    def read(self, line: LogLine) -> None:
        self.lines += 1
        self.files.add(line.file)
        if len(self.beginning) <= MOST_LINES:
            self.beginning.append(line.text)
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
        self._read_launcher(line)
        self.progress.read(line, self.moments.get(line.file))
        known = self.known_errors.find(line.text)
        if (known is None or known.id == _SUMMARY) and self._continues_fatal(line):
            return
        fatal = _FATAL.match(line.text) if known is None else None
        self.fatal_lines = _MOST_FATAL_LINES if fatal else 0
        if known is not None:
            if known.id == _SUMMARY:
                self.hidden = _hidden_exception(line) or self.hidden
                if "target '" in line.text:  # hydra puts its reason into the same line
                    self.own.read(line)
            is_remark = _REMARK.search(line.text) is not None
            is_exception = _EXCEPTION.match(line.text) is not None
            level = max(known.level_of(is_exception), Level.HINT if is_remark else Level.CAUSE)
            if _WARNING.search(line.text) and level is Level.CAUSE:
                level, is_remark = Level.HINT, True
            if self.in_other_failures:
                level = max(level, Level.CONSEQUENCE)
            if _QUOTED_CODE.match(line.text) and level is not Level.CONSEQUENCE:
                level = Level.ASIDE
            self._add(Finding(line, known, level, line.named_rank, line.text.strip(), is_remark=is_remark))
        elif fatal is not None:
            frame = Frame(fatal["file"], int(fatal["line"]), "")
            message = fatal["message"].strip()
            if self.error_before is not None and self.error_before.file == line.file:
                message += f"\n{self.error_before.text.strip()}"
            self._add(Finding(line, None, Level.SYMPTOM, line.named_rank, message, FATAL, frame))
        elif _has_lost_loss(line.text):
            self._add(Finding(line, self._known("loss-nan"), Level.HINT, line.named_rank, line.text.strip()))
        else:
            if "CCL WARN " in line.text and len(self.warned) < _MOST_WARNINGS:
                self.warned.append(line)
            self.quoted = self.quoted or _quoted_exception(line)
            is_own = self.own.may_be(line.text) and not _is_remark(line.text) and not _QUOTED_CODE.match(line.text)
            self.error_before = line if is_own and self.own.read(line) else None
            if _LOOKS_LIKE_ERROR.search(line.text):
                self.unknown = [*self.unknown[-4:], line]

    def _known(self, id: str) -> KnownError:
        return next(error for error in self.known_errors.errors if error.id == id)

    def _continues_fatal(self, line: LogLine) -> bool:
        """Add a line to the fatal record before it, if it belongs to it."""
        if not self.fatal_lines or not self.findings or RECORD.match(line.text) or line.moment is not None:
            return False
        last = self.findings[-1]
        if last.exception != FATAL or (last.line.file, last.line.rank) != (line.file, line.rank):
            return False
        self.findings[-1] = replace(last, text=f"{last.text}\n{line.text.strip()}")
        self.fatal_lines -= 1
        return True

    def _read_launcher(self, line: LogLine) -> None:
        """Read the rank that torchrun names as the first that failed, and when."""
        text = line.text
        if failed_at := _FAILED_AT.match(text):
            self.moments[line.file] = " ".join(failed_at.groups())
        if self.reported_local_rank is None and (failed := _FAILED_LOCAL_RANK.search(text)):
            self.reported_local_rank = int(failed[1])
        self.by_torchrun = self.by_torchrun or "torchrun" in text or "torch/distributed/elastic" in text
        if _OTHER_FAILURES.match(text):
            self.in_other_failures = True
        if _ROOT_CAUSE in text:
            self.after_root_cause, self.in_other_failures = True, False
        elif self.after_root_cause and (failed := _FAILED_RANK.match(text)):
            self.reported_rank, self.after_root_cause = int(failed[1]), False

    def _end(self, traceback: Traceback) -> None:
        """Add the most likely cause of a chain of tracebacks."""
        if traceback.is_ignored:
            return
        findings = [self._finding(each) for each in traceback.chain if each.type and not each.is_bare_wrapper]
        if not findings:
            self.cut = True
            self._end_without_exception(traceback)
            return
        known = [finding for finding in findings if finding.known is not None and finding.level is Level.CAUSE]
        best = (known or findings)[0]
        if best.frame is None or best.frame.is_library:  # the user's line may be in another traceback of the chain
            best = next(
                (
                    replace(best, frame=each.users_frame, source=each.users_source)
                    for each in reversed([*traceback.before, traceback])
                    if each.users_frame is not None and not each.users_frame.is_library
                ),
                best,
            )
        if self.first_traceback is None and best.frame is not None and not _is_launchers(traceback):
            self.first_traceback = best
        self._add(best)

    def _end_without_exception(self, traceback: Traceback) -> None:
        """Keep where a traceback was whose exception the log lacks; its last line may be what raised."""
        frame, source = traceback.users_frame, traceback.users_source
        if frame is None or frame.is_library:
            return
        last = traceback.source_of.get(len(traceback.frames) - 1, "")
        raises = _RAISES.match(last)
        name = "AssertionError" if raises and raises["check"] else (raises["type"] if raises else "")
        finding = Finding(
            traceback.begin, None, Level.SYMPTOM if name else Level.ASIDE, traceback.rank,
            f"{name}: {last}" if name else "the log ends before its exception", name.rpartition(".")[2] or None, frame,
            source=source, innermost=traceback.innermost, stage=stage_of(traceback.frames, source),
        )  # fmt: skip
        self.cut_traceback = self.cut_traceback or finding
        if name and not _LAUNCHERS.match(finding.exception or ""):
            self._add(finding)

    def _finding(self, traceback: Traceback) -> Finding:
        known = self.known_errors.find(traceback.text, traceback.code)
        if known is not None and known.id == _SUMMARY:
            self.hidden = (
                _hidden_exception(replace(traceback.end or traceback.begin, text=traceback.text)) or self.hidden
            )
        if known is not None and known.id == _SUMMARY and not _is_launchers(traceback) and traceback.frames:
            known = None  # an exception of the program whose text has the word "exited"
        level = known.level_of(in_traceback=True) if known else _level_of_unknown(traceback)
        if traceback.is_remark:
            level = max(level, Level.HINT)
        line, source = traceback.end or traceback.begin, traceback.users_source
        return Finding(
            line, known, level, traceback.rank, traceback.text.strip(), traceback.name, traceback.users_frame,
            traceback.is_remark, source=source, innermost=traceback.innermost,
            stage=stage_of([*(frame for each in traceback.before for frame in each.frames), *traceback.frames], source),
        )  # fmt: skip

    def _add(self, finding: Finding) -> None:
        finding = replace(finding, moment=finding.line.moment or self.moments.get(finding.line.file))
        self.counts[finding.line.file, finding.id] += 1
        if finding.level is Level.CONSEQUENCE:
            self.consequences[finding.id] += 1
            if finding.id == "aborted":
                self.progress.abort(finding.line.file, finding.moment)
            if self.signal is None and "due to a collective timeout from" in finding.text:
                self.signal = finding
        elif len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)

    def explanation(self) -> Explanation:
        for traceback in self.tracebacks.rest():
            self._end(traceback)
        findings = [*_without_wrappers(finding for finding in self.findings if self._is_often_enough(finding))]
        failed = bool(self.consequences) or self.cut
        cause = first_cause([finding for finding in in_time(findings) if is_answer(finding, failed)], findings)
        cause = self._behind_the_end(cause, findings) or self._silent_time_out(cause) or cause
        cause = cause or self._in_prose(findings)
        if cause is None or cause.level is Level.HINT:
            cause = self._own_message(failed) or self.hidden or cause or self._line_of_a_kind(failed)
        if cause is not None:
            cause = replace(cause, rank=self._rank_of(cause))
        others: dict[str, Finding] = {}
        for finding in findings:
            if cause is None or finding.id != cause.id:
                others.setdefault(finding.id, finding)
        details = self._details(cause)
        suspects = self.watchdog.suspects if details else []
        return Explanation(
            cause,
            details,
            self.reported_rank,
            self.reported_local_rank if self.reported_rank is None else None,
            _in_order(others.values())[:8],
            dict(self.consequences),
            [] if cause else self.unknown,
            self.cut,
            self.lines,
            len(self.files),
            "" if failed or cause or self.unknown else self.progress.last_step,
            (self.first_traceback or self.cut_traceback) if cause is None else None,
            "\n".join(self.beginning) if cause is None and not failed and self._is_short_text() else "",
            suspects[0] if len(suspects) == 1 else None,
            self.watchdog.abridged,
            rival_of(cause, findings),
            self.warned if cause is not None and cause.id in _ERRORS_OF_NCCL else [],
        )

    def _is_short_text(self) -> bool:
        """True for a text that may be a description: a log of steps is none."""
        return self.lines <= MOST_LINES and self.progress.last_line is None

    def _is_often_enough(self, finding: Finding) -> bool:
        least = finding.known.least if finding.known else 1
        return self.counts[finding.line.file, finding.id] >= least

    def _behind_the_end(self, cause: Finding | None, findings: Sequence[Finding]) -> Finding | None:
        """Return the warning that a log repeats until a user stopped the job."""
        if cause is None or cause.id not in (BY_HAND, "slurm-time-limit"):
            return None
        often = (
            finding
            for finding in findings
            if finding.known is not None
            and finding.level is Level.HINT
            and self.counts[finding.line.file, finding.id] >= _MANY
        )
        return next(often, None)

    def _in_prose(self, findings: Sequence[Finding]) -> Finding | None:
        """Return an exception that a short text quotes within a sentence, first one that the table knows."""
        if self.consequences or not self._is_short_text():
            return None
        asides = (finding for finding in findings if finding.level is Level.ASIDE and finding.exception is None)
        quoted = next((finding for finding in asides if _QUOTED.search(finding.text)), None)
        return replace(quoted, level=Level.SYMPTOM) if quoted is not None else self.quoted

    def _own_message(self, failed: bool) -> Finding | None:
        """Return the program's own message about its failure, if nothing explains it better.

        A record of an error is none if the program came to its last step.
        """
        said = self.own.best()
        if said is None or (said.strength >= RECORDS and not failed and self.progress.last_step):
            return None
        return Finding(said.line, None, Level.SYMPTOM, said.line.named_rank, said.text, OWN)

    def _line_of_a_kind(self, failed: bool) -> Finding | None:
        """Return the first of the last lines that look like an error and are of a kind, if the job failed."""
        if not failed:
            return None
        lines = (Finding(each, None, Level.SYMPTOM, each.named_rank, each.text.strip(), OWN) for each in self.unknown)
        return next((finding for finding in lines if finding.meaning is not None), None)

    def _silent_time_out(self, cause: Finding | None) -> Finding | None:
        """Return the time-out of which the log has only the effect on other ranks, or a long silence before the end."""
        if self.signal is None and not self.progress.silence_s:
            return None
        if cause is not None and cause.level < Level.HINT:
            return None
        known = self._known("collective-timeout")
        if self.signal is not None:
            return replace(self.signal, known=known, level=Level.SYMPTOM, rank=None)
        line = self.progress.last_line
        if line is None:
            return None
        return Finding(line, known, Level.SYMPTOM, line.rank, line.text.strip(), moment=line.moment)

    def _details(self, cause: Finding | None) -> list[str]:
        """Return sentences about a hang: who waited where, and how long nothing happened before the end."""
        if cause is None or cause.level is not Level.SYMPTOM:
            return []
        details = self.watchdog.sentences()
        if cause.id in HANGS and self.progress.long_work is not None:
            label, elapsed_s = self.progress.long_work
            details.append(
                f"Before, `{label}` ran for {round(elapsed_s / 60)} minutes: if other ranks take no part in it, they "
                "wait in their next collective until they give up. Let all ranks take part, or set a longer timeout."
            )
        if cause.id in HANGS and not details and self.progress.silence_s:
            minutes = round(self.progress.silence_s / 60)
            details = [
                f"The last progress in the log came {minutes} minutes before the abort: NCCL's watchdog aborts the "
                "process when a collective has waited for its time-out."
            ]
        return details

    def _rank_of(self, cause: Finding) -> int | None:
        """Return the rank of the cause: srun names the task that slurmstepd does not name.

        Below torchrun, a task of srun is a node, not a rank.
        """
        own = None if _names_task(cause) and self.by_torchrun else cause.rank
        if own is not None or self.by_torchrun:
            return own
        same = [other for other in self.findings if other.id == cause.id and other.line.file == cause.line.file]
        tasks = {other.rank for other in same if _names_task(other) and other.rank is not None}
        return tasks.pop() if len(tasks) == 1 else None


def _is_remark(text: str) -> bool:
    """True if its program takes a line for no error."""
    return (_REMARK.search(text) or _WARNING.search(text)) is not None


def _has_lost_loss(text: str) -> bool:
    """True if the loss in a line is NaN or infinite."""
    lower = text.lower()
    if "loss" not in lower or not ("nan" in lower or "inf" in lower):
        return False
    return _LOSS.search(_LEAST_LOSS.sub("", text)) is not None


def _without_wrappers(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Leave out an exception that only says that another one of its class follows, if that one is in the log too."""
    wrapper: Finding | None = None
    for finding in findings:
        if wrapper is not None and (wrapper.exception, wrapper.line.file) != (finding.exception, finding.line.file):
            yield wrapper
        wrapper = finding if finding.known is None and WRAPS.match(finding.text.partition(": ")[2]) else None
        if wrapper is None:
            yield finding
    if wrapper is not None:
        yield wrapper


def _quoted_exception(line: LogLine) -> Finding | None:
    match = None if _QUOTED_CODE.match(line.text) else _IN_QUOTES.search(line.text)
    if match is None or _LAUNCHERS.match(match["type"].rpartition(".")[2]):
        return None
    text = f"{match['type']}: {match['message'].strip()}"
    return Finding(line, None, Level.SYMPTOM, line.named_rank, text, match["type"].rpartition(".")[2])


def _hidden_exception(line: LogLine) -> Finding | None:
    match = _HIDDEN.search(line.text)
    if match is None:
        return None
    text = match["other"] or f"{match['type']} in {match['task']}"
    return Finding(line, None, Level.SYMPTOM, line.named_rank, text, HIDDEN)


def _is_launchers(traceback: Traceback) -> bool:
    """True if a launcher reports that another process failed."""
    return _LAUNCHERS.match(traceback.name) is not None and _TOOL.match(traceback.text) is None


def _in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by time if all have one, else leave them in the order of the files and lines."""
    findings = list(findings)
    if len({finding.line.file for finding in findings}) > 1 and all(finding.moment for finding in findings):
        return sorted(findings, key=lambda finding: finding.moment or "")
    return findings


def _names_task(finding: Finding) -> bool:
    return finding.text.startswith("srun: error: ")


def _level_of_unknown(traceback: Traceback) -> Level:
    """Return the level of an exception that the table does not know."""
    if any(_SIGNAL_HANDLER.search(frame.function) for frame in traceback.frames):
        return Level.CONSEQUENCE
    bare = not traceback.frames and not traceback.before
    shows_only_that = bare or traceback.wraps_another or _TIME_OUT.search(traceback.name)
    if _NOT_THE_ERROR.search(traceback.text):
        return Level.HINT
    return Level.SYMPTOM if shows_only_that else Level.CAUSE
