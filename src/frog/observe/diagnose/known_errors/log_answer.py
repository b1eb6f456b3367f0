"""The explanation of a log as a diagnosis: what failed, where, what it means, what to do, and how sure that is."""

from __future__ import annotations

from frog.observe.diagnose.diagnosis import Diagnosis, diagnosis_text
from frog.observe.diagnose.known_errors.explain import Explanation
from frog.observe.diagnose.known_errors.findings import FATAL, HIDDEN, OWN, Finding
from frog.observe.diagnose.known_errors.kinds import package_of
from frog.observe.diagnose.known_errors.questions import PAGE, asked, question_answer
from frog.observe.diagnose.known_errors.table import known_errors
from frog.observe.diagnose.known_errors.table.known import Level

_MOST_TEXT, _MOST_QUOTED = 600, 6
MORE_HELPS = (
    "more evidence helps: the logs of all ranks (torchrun --log-dir=logs --tee 3, srun --label), their exit codes, "
    "flight-recorder dumps, `py-spy dump` of a rank that hangs; `frog run` and `frog observe --env` record all of these"
)

_CERTAINTY = {
    (Level.CAUSE, True): "The log shows the cause itself.",
    (Level.CAUSE, False): "This message has several causes; the text above names the usual ones.",
    (Level.SYMPTOM, True): "This is what failed first in the log. Its cause may be in another rank's log.",
    (Level.SYMPTOM, False): "This is what failed first in the log, but it is a symptom: the log does not show the "
    "cause.",
    (Level.HINT, True): "The log shows no error, only this warning. It may be harmless.",
    (Level.HINT, False): "The log shows no error, only this warning. It may be harmless.",
}  # fmt: skip


def log_answer(name: str, explanation: Explanation) -> Diagnosis:
    """Return the diagnosis of a log from its text alone."""
    if explanation.cause is not None:
        return _of_cause(name, explanation, explanation.cause)
    question = asked(explanation.description) if explanation.description else None
    if question is not None:
        return question_answer(question, explanation.description)
    return _without_cause(explanation)


def log_text(name: str, explanation: Explanation) -> str:
    """Format the diagnosis of a log as text."""
    return diagnosis_text(name, log_answer(name, explanation))


def _of_cause(name: str, explanation: Explanation, cause: Finding) -> Diagnosis:
    known = cause.known
    kind = cause.meaning
    title = known.id if known else f"{cause.exception or 'exception'}{f' ({kind.id})' if kind else ''}"
    title = f"{title}, {cause.text}" if cause.exception == HIDDEN else title
    warning = "no error, only a warning: " if explanation.only_a_warning else ""
    file = f" of {cause.line.file}" if cause.line.file not in ("", name) else ""
    meaning, advice, confidence = _meaning(explanation, cause)
    section = f"\n{PAGE}, section {known.section}" if known and known.section else ""
    return Diagnosis(
        known.id if known else "raise",
        f"{warning}{title}, {_who(explanation)}, line {cause.line.number}{file}",
        rank=explanation.suspect if explanation.rank is None else explanation.rank,
        line=str(cause.frame) if cause.frame else None,
        certain=explanation.certain,
        outcome="unknown" if explanation.only_a_warning else "failed",
        evidence=(
            *_quote(cause.text),
            *_raised_at(cause),
            *(f"NCCL's warning, line {line.number}: {_of_nccl(line.text)}" for line in explanation.warned),
            *(_local_rank(explanation) if explanation.rank is None and not explanation.details else []),
            *_events(explanation),
        ),
        advice=advice + section,
        known_error=known.id if known else None,
        meaning="\n".join([meaning, *explanation.details]),
        confidence=confidence,
    )


def _of_nccl(text: str) -> str:
    return text.partition("CCL WARN ")[2].strip()[:_MOST_TEXT]


def _local_rank(explanation: Explanation) -> list[str]:
    rank = explanation.reported_local_rank
    return [] if rank is None else [f"The launcher names local rank {rank} as the first that failed on its node."]


def _raised_at(finding: Finding) -> list[str]:
    """Name the user's line, and what it says."""
    if finding.frame is None:
        return []
    return [f"raised at {finding.frame}", *([f"    {finding.source[: _MOST_TEXT // 4]}"] if finding.source else [])]


def _who(explanation: Explanation) -> str:
    if explanation.details:
        return "several ranks"
    return "rank unknown" if explanation.rank is None else f"rank {explanation.rank}"


def _meaning(explanation: Explanation, cause: Finding) -> tuple[str, str, str]:
    """Return what a cause means, what to do, and how sure that is."""
    known = cause.known
    if known is None:
        return _meaning_of_unknown(cause)
    if explanation.rival is not None:
        rival = explanation.rival
        confidence = (
            f"Two causes are possible: this one, and {rival.id} in line {rival.line.number}. "
            "The log does not show which came first."
        )
    elif cause.level is Level.HINT and not explanation.only_a_warning:
        confidence = (
            "The log shows that the job failed, but of its lines only this warning can explain it."
            if explanation.consequences
            else "These are the words of an error; that it ended the program, the log does not show."
        )
    elif explanation.may_be_behind:
        confidence = "The log also has a traceback whose exception is cut off, and that may be what ended the program."
    else:
        confidence = _CERTAINTY[cause.level, known.sure]
    kind = cause.meaning
    return (kind.says, kind.advice, confidence) if kind else (known.cause, known.advice, confidence)


def _meaning_of_unknown(cause: Finding) -> tuple[str, str, str]:
    """Return what an error means that the table does not know: by its kind, and by what the program did."""
    kind = cause.meaning
    if cause.exception == FATAL:
        says = "A library in native code found a state that must not be, and aborted its process at this line."
        advice = "search for the message, and look at the lines above it; compare the versions of the libraries"
        confidence = "The process ended here. Whether the end of another one led to it, the log does not show."
        return (f"{says}\n{kind.says}", kind.advice, confidence) if kind else (says, advice, confidence)
    if cause.exception == HIDDEN:
        says = "A process of the job raised this exception; the log has its class, but not its text."
        advice = (
            "look for its traceback earlier in the log, and in the worker's own files (/tmp/ray/session_latest/logs)"
        )
        return says, advice, "What raised it, the log does not show."
    if cause.exception == OWN:
        says = "No known error matches; this is the strongest error message of the program or of a tool that it uses."
        advice = "look at the lines around it"
        confidence = "It is what the log says about the failure; the cause may be elsewhere."
        return (kind.says, kind.advice, confidence) if kind else (says, advice, confidence)
    stage = f" It was raised {cause.stage}." if cause.stage else ""
    confidence = (
        "It is the first exception in the log that does not follow from another rank's failure."
        if cause.level is Level.CAUSE
        else "It may not be what ended the job: it is a time-out, it points to another error, or the log does not show "
        "where it was raised."
    )
    if kind is not None:
        return f"{kind.says}{stage}", kind.advice, confidence
    says = f"This exception is none of the {len(known_errors().errors)} known errors; its text says what happened."
    advice = "open the named line; does it happen with one process too?"
    if cause.frame is None:
        advice = "look for its traceback in the whole log, or for these words in the program and its libraries"
    says, advice = words_of_raiser(cause) or (says, advice)
    return f"{says}{stage}", advice, confidence


def words_of_raiser(cause: Finding) -> tuple[str, str] | None:
    """Return what an exception of no kind means and what to do, by who raised it; None if the log does not tell."""
    if package := package_of(cause.innermost):
        says = f"{package} does not accept what the program does, and the text is its explanation."
        return says, f"do what the text says; else install the version of {package} that the program was written for"
    if cause.source.startswith("raise "):
        says = "The program itself raises this error, with its own explanation."
        return says, "read the condition above the named line, and what the program's documentation says about it"
    return None


def _without_cause(explanation: Explanation) -> Diagnosis:
    """Say what was read, what was looked for and what would help, if nothing explains a failure."""
    failed = bool(explanation.consequences) or explanation.cut
    first = explanation.first_traceback
    is_cut = first is not None and first.exception is None
    if explanation.consequences and not is_cut:
        finding = (
            "no cause in this log: its errors follow from the failure of another process. "
            "Look for the log of the rank that failed first."
        )
    elif explanation.cut or is_cut:
        finding = "no known error matches: a traceback begins, but the log ends or changes before its exception."
    elif explanation.last_step:
        return Diagnosis(
            "none",
            f"the log reaches its last step ({explanation.last_step}) and shows no failure",
            certain=False,
            outcome="completed",
            evidence=(_was_read(explanation), *_events(explanation)),
            advice="look for the exit code: 0 would prove it",
            confidence="A log can end before a failure does: an exit code, or Slurm's state COMPLETED, is proof.",
        )
    else:
        finding = "no known error matches, and nothing proves that the program succeeded."
    lines = [_was_read(explanation), f"looked for: {_looked_for()}"]
    if explanation.reported_rank is not None:
        lines.append(f"The launcher names rank {explanation.reported_rank} as the first that failed.")
    lines += _local_rank(explanation)
    if first is not None:
        rank = "" if first.rank is None else f", rank {first.rank}"
        stage = f", {first.stage}" if first.stage else ""
        lines += [
            f"The first traceback, line {first.line.number}{rank}: {first.text.splitlines()[0][:_MOST_TEXT]}{stage}",
            *_raised_at(first),
        ]
    if explanation.unknown:
        lines.append("The last lines that look like an error are")
        lines += [f"line {line.number}: {line.text.strip()[:_MOST_TEXT]}" for line in explanation.unknown]
    return Diagnosis(
        "unknown",
        finding,
        rank=explanation.reported_rank if first is None or explanation.reported_rank is not None else first.rank,
        certain=False,
        outcome="failed" if failed else "unknown",
        evidence=(*lines, *_events(explanation)),
        advice=MORE_HELPS,
        confidence="The log does not show the cause." if failed else "The log shows neither a failure nor a success.",
    )


def _was_read(explanation: Explanation) -> str:
    files = f"{explanation.files} files, " if explanation.files > 1 else ""
    return f"read: {files}{explanation.lines} lines of text"


def _looked_for() -> str:
    return (
        f"{len(known_errors().errors)} known errors, tracebacks, names of ranks, time-outs, exit codes, the last step, "
        "flight-recorder dumps, files of observers"
    )


def _events(explanation: Explanation) -> list[str]:
    """Return the other findings in the order of the log, with their times, and the number of consequences."""
    lines = [
        f"Also: {other.line.file + ', ' if explanation.files > 1 else ''}line {other.line.number}"
        f"{f', {other.moment}' if other.moment else ''}{'' if other.rank is None else f', rank {other.rank}'}: "
        f"{other.id}: {other.text.splitlines()[0][:160]}"
        for other in explanation.others
    ]
    if explanation.consequences:
        counts = ", ".join(f"{name} {number}" for name, number in sorted(explanation.consequences.items()))
        lines.append(f"Lines that follow from another failure: {counts}")
    return lines


def _quote(text: str) -> list[str]:
    lines = text[:_MOST_TEXT].splitlines()
    return [*lines[:_MOST_QUOTED], *(["…"] if len(lines) > _MOST_QUOTED or len(text) > _MOST_TEXT else [])]
