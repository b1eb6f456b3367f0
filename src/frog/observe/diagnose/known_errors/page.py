"""The site's page of known errors, generated from the table."""

from __future__ import annotations

import re
import textwrap

from frog.observe.diagnose.known_errors.table import known_errors, subjects
from frog.observe.diagnose.known_errors.table.known import KnownError, Level

_INTRODUCTION = """\
# Errors that `frog diagnose` knows in logs

`frog diagnose FILE` [searches a job's log](your-program.md#explain-a-log) for these {number} errors and reports the
first cause. `…` replaces numbers and names in a message; upper and lower case do not matter. Some errors are explained
at length in [Troubleshooting](../troubleshooting.md). This page is generated from the table in
`src/frog/observe/diagnose/known_errors/table/`.
"""

_LEVELS = {
    Level.CAUSE: "",
    Level.SYMPTOM: "A symptom: reported if the log does not contain a cause.",
    Level.HINT: "A warning: reported if the log contains neither a cause nor a symptom.",
    Level.CONSEQUENCE: "A consequence: counted, never reported as the cause.",
    Level.ASIDE: "Shown with an answer, never as one.",
}


def page() -> str:
    """Return the page's text, as of a page in docs/observe/."""
    parts = [_INTRODUCTION.format(number=len(known_errors().errors))]
    for subject in subjects():
        parts += [f"## {subject.title}\n", *map(_entry, subject.error)]
    return "\n".join(parts)


def _entry(error: KnownError) -> str:
    title, cause = _heading(error)
    anchor = f"{error.id}-troubleshooting-{error.section}" if error.section else error.id
    more = f"More: [Troubleshooting](../troubleshooting.md), section {error.section}." if error.section else ""
    remark = " ".join(filter(None, [_LEVELS[error.level], "" if error.sure else "The message has several causes."]))
    text = " ".join(filter(None, [cause, remark, f"**Do:** {error.advice}.", more, f"Its id is `{error.id}`."]))
    messages = "\n".join(f"- `` {message.strip()} ``" for message in error.looks_like)
    if error.signal is not None:
        messages += f"\n- in any words: signal {error.signal}, exit code -{error.signal} or {128 + error.signal}"
    return f"### {title} {{#{anchor}}}\n\n{_filled(text)}\n\n{messages}\n"


def _heading(error: KnownError) -> tuple[str, str]:
    """Return the heading, and what remains of the cause: without a title, its first clause is the heading."""
    if error.title:
        return error.title, error.cause
    title, *rest = re.split(r"[:;] |\. |\.$", " ".join(error.cause.split()), maxsplit=1)
    remains = "".join(rest)
    return title, remains[:1].upper() + remains[1:]


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
