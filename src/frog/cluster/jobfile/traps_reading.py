"""Traps in a file that Frog or Slurm cannot read: an encoding mark, placeholders, broken shell syntax."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.cluster.jobfile.findings import ADVICE, FAILS, Finding, Trap
from frog.cluster.jobfile.job import JobFile, language
from frog.cluster.jobfile.traps_shell import BLANK_BEHIND_EQUALS

_BLANKS = re.compile(r"\s*(?:export )?([A-Za-z_]\w*)(?: +=\s*|= +)\(")
"""A list after spaces, which no shell parser accepts."""


BYTE_ORDER_MARK = Trap(
    "byte-order-mark",
    FAILS,
    "the kernel and sbatch do not recognize the #! after it and refuse the file",
    "sed -i '1s/^\\xef\\xbb\\xbf//' FILE; or save it as UTF-8 without a BOM",
)


def encoding_findings(mark: str | None) -> Iterator[Finding]:
    """Find an encoding mark (BOM) before the first line."""
    if mark:
        yield BYTE_ORDER_MARK.at(1, f"the file begins with the encoding mark {mark}")


TEMPLATE = Trap(
    "template",
    ADVICE,
    "Frog does not know these values and draws no conclusion from them: fill them in and check again",
)


def gap_findings(job: JobFile) -> Iterator[Finding]:
    """Report all placeholders in one message, including those of nested job files."""
    if job.gaps:
        lines, first = list(job.gaps), next(iter(job.gaps))
        some = ", ".join(list(dict.fromkeys(job.gaps.values()))[:4])
        yield TEMPLATE.at(first, f"a template: fill in {some} in {_lines(lines)}")


QUOTE_NOT_CLOSED = Trap(
    "quote-not-closed", FAILS, "the shell reaches the end of the file first and runs nothing from here on"
)
NOT_UNDERSTOOD = Trap("not-understood", ADVICE, "Frog skipped these lines; a missing setting may be in them")


def unread_findings(job: JobFile) -> Iterator[Finding]:
    """Report what Frog did not understand, one message each."""
    unread = [line for line in job.shell.unread if line not in job.gaps]
    for line in unread:
        text = job.lines[line - job.first_line] if line - job.first_line < len(job.lines) else ""
        if match := _BLANKS.match(text):
            what = f"spaces around the = after {match[1]}"
            yield BLANK_BEHIND_EQUALS.at(line, what, name=match[1], value="(...)")
    if job.shell.unclosed is not None:
        what = "a quote, an if or a loop that starts here is never closed"
        yield QUOTE_NOT_CLOSED.at(job.shell.unclosed, what)
    elif unread and (other := language(job.lines)):
        yield NOT_UNDERSTOOD.at(unread[0], f"written for {other}: Frog reads only its header")
    elif unread:
        yield NOT_UNDERSTOOD.at(unread[0], f"{_lines(unread)} not understood as shell")


def _lines(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"line{'' if len(numbers) == 1 else 's'} {shown}"
