"""Lines of a log without colours, quotes, times and names of ranks, which become fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

MOST_CHARACTERS = 4000
"""Most characters of a line; the rest is ignored."""

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]{0,200}\x07|\[(?:[012]|3[0-7]|9[0-7])(?:;\d+)?m")
_OWN = re.compile(r"^\"?\[rank:? ?(?P<rank>\d{1,6})\]:? ?")
"""torch's own prefix, which is the global rank even behind a launcher's label."""
_RANKS = (
    _OWN,
    *(
        re.compile(pattern)
        for pattern in (
            r"^\[default(?P<rank>\d{1,6})\]:? ?",  # torchrun --tee
            r"^\[\d+,(?:mpirank:)?(?P<rank>\d{1,6})(?:,[\w.-]{1,60})?\]<std(?:out|err)>: ?",  # mpirun, SageMaker
            r"^\[(?P<rank>\d{1,4})\]: ?(?=\S|  )",
        )
    ),
)
_LABEL = re.compile(r"^ *(?P<rank>\d{1,6}): ")
"""The prefix of `srun --label`; text may begin like this too, so it counts only if many lines have it."""
_SAMPLE = 200
_BAR_END = re.compile(r"\d \[\d[\d:]*<[^\[\]]{1,300}\](?=\S)")
"""The end of tqdm's bar with another program's text right behind it: `1.58s/it]Killed`."""
_SOURCES = tuple(
    re.compile(pattern)
    for pattern in (
        r"^\d{0,7}(?P<source>\([\w. ]{1,60} pid=\d+(?:, ip=[\d.]+)?\)) ?",  # Ray, also behind a viewer's line number
        r"^(?P<source>\[(?:worker|actor|process|proc|host|node)[ :_-]?\d{1,6}\]):? ?",
        r"^\[pod/[^\]]{1,200}\] ?",  # kubectl logs --prefix
        r"^[\w.-]{1,80}-(?:worker|master|launcher)-\d+(?:/[\w-]+)? ?[|:]? ",
        r"^(?!(?:ERROR|CRITICAL|WARNING|INFO|DEBUG)\b)[\w.-]{1,80}\s+\|\|? ",  # docker compose, Determined
        r"^E {2,7}(?=  |\w)",  # pytest
        *(
            rf"^{prefix} (?=  |Traceback|[\w.]{{1,80}}(?:Error|Exception):)"
            for prefix in (
                r"(?:stdout|stderr|[a-zA-Z][\w.-]{0,60}\d):",  # pdsh, accelerate
                r"(?P<source>torch\.[\w.]{1,100}): \[ERROR\]",
                r"E\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ (?P<source>\S{1,200}\.py:\d+)\]",  # torch's own loggers
            )
        ),
    )
)
_TIMES = tuple(
    re.compile(pattern)
    for pattern in (
        r"^\[?\d{4}-(?P<month>\d\d)-(?P<day>\d\d)[T_ ](?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?:Z|[+-]\d\d:?\d\d)?\]?"
        r"(?: std(?:out|err) [FP])?:? ?",
        r"^\d\d:\d\d:\d\d(?:[.,]\d{1,9})? ",
        r"^(?:ERROR|CRITICAL|WARNING|INFO) (?P<month>\d\d)-(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d) "  # vLLM
        r"\[?[\w./]{1,80}:\d+\] ?",
    )
)
_QUOTED_FRAME = re.compile(r'\\n  File \\?"')
_STRAIGHT = str.maketrans("\u201c\u201d\u2018\u2019", "\"\"''")
"""Straight quotation marks for the curly ones that a forum or a word processor makes of them."""
_BOLD = re.compile(r"^\*\*([^*]{1,200})\*\*\s*$")
"""A line in bold in Markdown."""
_GLOG = re.compile(r"^\[?[EWIF](?P<month>\d{1,2})(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d\.\d{1,9}) ")
_IN_TEXT = re.compile(
    r"\[Rank (?P<rank>\d{1,6})\]|\bRank (?P<of_group>\d{1,6})\] |\brank[ :=]+(?P<word>\d{1,6})\b"
    r"|^srun: error: \S{1,200}: task (?P<task>\d{1,6}): "
)


@dataclass(frozen=True)
class LogLine:
    """A line of a log."""

    number: int
    """Number of the line in its file, from 1."""
    text: str
    rank: int | None = None
    """The rank of its prefix."""
    file: str = ""
    source: str = ""
    """The prefix of a process that is not a rank: a Ray worker, a pod, a host."""
    moment: str | None = None
    """Month, day and time, if the line has them; compares as text."""

    @property
    def named_rank(self) -> int | None:
        """The rank of the prefix, else the rank that the text names as its own."""
        if self.rank is not None:
            return self.rank
        match = _IN_TEXT.search(self.text)
        return int(next(group for group in match.groups() if group is not None)) if match else None


def clean_lines(lines: Iterable[str], file: str = "") -> Iterator[LogLine]:
    """Turn prefixes into fields; each version of a progress bar's line counts as a line, and so does text behind it."""
    lines = iter(lines)
    first = list(islice(lines, _SAMPLE))
    written = [line for line in first if line.strip()]
    labelled = sum(_LABEL.match(line) is not None for line in written) > len(written) / 2
    ranks = (*_RANKS, _LABEL) if labelled else _RANKS
    for number, raw in enumerate(chain(first, lines), 1):
        for version in _quoted_lines(raw[: 16 * MOST_CHARACTERS].rstrip("\r\n").split("\r")):
            text = version[:MOST_CHARACTERS]
            if match := _BAR_END.search(text):
                yield _clean(number, text[: match.end()], file, ranks)
                text = text[match.end() :]
            yield _clean(number, text, file, ranks)


def _quoted_lines(versions: list[str]) -> Iterator[str]:
    """Yield the lines of a text whose repr() a program printed in one line: a traceback has `\\n  File` in it then."""
    for version in versions:
        yield from version.split("\\n") if _QUOTED_FRAME.search(version) else [version]


def _clean(number: int, text: str, file: str, ranks: tuple[re.Pattern[str], ...]) -> LogLine:
    text = _CONTROL.sub("", text).replace(" (see above for traceback): ", ": ")  # TensorFlow 1
    if not text.isascii():
        text = text.translate(_STRAIGHT)
    rank, moment, source = None, None, ""
    if text.startswith((">", "`")):  # quoted in Markdown
        text = text.lstrip(">").removeprefix(" ").lstrip("`")
    if text.startswith("**") and (bold := _BOLD.match(text)):
        text = bold[1]
    for _ in range(4):  # prefixes come in any order
        before = text
        for pattern in _TIMES:
            if match := pattern.match(text):
                moment, text = moment or _moment(match), text[match.end() :]
        for pattern in _SOURCES:
            if match := pattern.match(text):
                source, text = source or (match.groupdict().get("source") or match[0]).strip(), text[match.end() :]
        for pattern in ranks:
            if (rank is None or pattern is _OWN) and (match := pattern.match(text)):
                rank, text = int(match["rank"]), text[match.end() :]
        if text == before:
            break
    if moment is None and (match := _GLOG.match(text)):
        moment = _moment(match)
    return LogLine(number, text.replace("```", ""), rank, file, source, moment)


def _moment(match: re.Match[str]) -> str | None:
    fields = match.groupdict()
    if "month" not in fields:
        return None
    return f"{int(fields['month']):02}-{fields['day']} {fields['time'].replace(',', '.')}"
