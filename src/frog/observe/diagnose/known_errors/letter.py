"""The explanation of a log as text."""

from __future__ import annotations

from frog.observe.diagnose.known_errors.explain import Explanation, Finding
from frog.observe.diagnose.known_errors.table import known_errors
from frog.observe.diagnose.known_errors.table.known import Level

PAGE = "docs/troubleshooting.md"
_MOST_TEXT, _MOST_QUOTED = 600, 6

_CERTAINTY = {
    (Level.CAUSE, True): "The log shows the cause itself.",
    (Level.CAUSE, False): "This message has several causes; the text above names the usual ones.",
    (Level.SYMPTOM, True): "This is what failed first in the log. Its cause may be in another rank's log.",
    (Level.SYMPTOM, False): "This is what failed first in the log, but it is a symptom: the log does not show the "
    "cause.",
    (Level.HINT, True): "The log shows no error, only this warning. It may be harmless.",
    (Level.HINT, False): "The log shows no error, only this warning. It may be harmless.",
}  # fmt: skip


def log_letter(name: str, found: Explanation) -> str:
    """Format an explanation: what failed, where, what it means, what to do, and how sure that is."""
    parts = _cause(name, found, found.cause) if found.cause else _nothing(name, found)
    return "\n".join([*parts, *_also(found)])


def _cause(name: str, found: Explanation, cause: Finding) -> list[str]:
    known = cause.known
    rank = "several ranks" if found.details else "rank unknown" if found.rank is None else f"rank {found.rank}"
    place = f"{cause.line.file or name}: " + ("no error, only a warning: " if found.only_a_warning else "")
    head = [
        f"{place}{known.id if known else cause.exception}, {rank}, line {cause.line.number}", "",
        *(f"  {line}" for line in _quote(cause.text)),
        *([f"  raised at {cause.frame}"] if cause.frame else []), "",
    ]  # fmt: skip
    if known is None:
        num_known = len(known_errors().errors)
        meaning = f"This exception is none of the {num_known} known errors; its text says what happened."
        advice = "open the named line; does it happen with one process too?"
        sure = (
            "It is the first exception in the log that does not follow from another rank's failure."
            if cause.level is Level.CAUSE
            else "It may not be what ended the job: it is a time-out, or the log does not show where it was raised."
        )
    elif cause.level is Level.HINT and not found.only_a_warning:
        meaning, advice = known.cause, known.advice
        sure = "The log shows that the job failed, but of its lines only this warning can explain it."
    else:
        meaning, advice, sure = known.cause, known.advice, _CERTAINTY[cause.level, known.sure]
    section = [f"  {PAGE}, section {known.section}"] if known and known.section else []
    return [
        *head, "What it means", f"  {meaning}", *(f"  {detail}" for detail in found.details), "",
        "What to do", f"  {advice}", *section, "", "How sure", f"  {sure}",
    ]  # fmt: skip


def _nothing(name: str, found: Explanation) -> list[str]:
    """Say that nothing explains the failure, and what comes closest."""
    if found.consequences:
        told = (
            "no cause in this log: its errors follow from the failure of another process.\n"
            "Look for the log of the rank that failed first."
        )
    elif found.cut:
        told = "no known error matches: a traceback begins, but the log ends or changes before its exception."
    else:
        told = "no known error matches."
    lines = [f"{name}: {told}"]
    if found.reported_rank is not None:
        lines.append(f"The launcher names rank {found.reported_rank} as the first that failed.")
    if found.unknown:
        lines += ["", "The last lines that look like an error are"]
        lines += [f"  line {line.number}: {line.text.strip()[:_MOST_TEXT]}" for line in found.unknown]
    return lines


def _also(found: Explanation) -> list[str]:
    lines = []
    if found.consequences:
        counted = ", ".join(f"{name} {number}" for name, number in sorted(found.consequences.items()))
        lines.append(f"Lines that follow from another failure: {counted}")
    lines += [
        f"Also: line {other.line.number}{'' if other.rank is None else f', rank {other.rank}'}: {other.id}: "
        f"{other.text.splitlines()[0][:160]}"
        for other in found.others
    ]
    return ["", *lines] if lines else []


def _quote(text: str) -> list[str]:
    lines = text[:_MOST_TEXT].splitlines()
    return [*lines[:_MOST_QUOTED], *(["…"] if len(lines) > _MOST_QUOTED or len(text) > _MOST_TEXT else [])]
