"""Python tracebacks in a log: their exception, and the user's innermost line.

The lines of several ranks may alternate, a traceback may be cut, and one may contain another (a DataLoader worker's,
a Ray task's). `TracebackReader` receives line after line and returns each traceback when it ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from frog.diagnose.known_errors.lines import LogLine

_BEGIN = "Traceback (most recent call last)"
_FRAME = re.compile(r'^\W*File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,200}))?')
_RICH_FRAME = re.compile(r"^[│|] (?P<file>\S{1,300}):(?P<line>\d{1,9}) in (?P<function>[^│|]{1,200}?) *[│|]?$")
_EXCEPTION = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(?P<message>.*))?$")
_ENDS = ("Error", "Exception", "Exit", "Interrupt", "Warning", "Timeout", "Failure", "Closed", "StopIteration", "Empty")
_LIBRARY = ("/site-packages/", "/dist-packages/", "<frozen ", "<string>", "/lib/python3", "\\Lib\\", "/usr/lib/python")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_WRAPS = re.compile(r"^Caught \w+ in (?:DataLoader worker process|replica|pin memory thread)")
_RECORD = re.compile(
    r"\[|[EWIF]\d{4} |(?:WARNING|ERROR|INFO|DEBUG|CRITICAL)\b|srun|slurm|wandb|[\w.-]+:\d+:\d+ \[|[=─-]{5}|frame #"
    r"|terminate called|Exception raised from|\s*\d+%|Process |Killing |Epoch|Loading|python|/\S+: line|/\S+\.py:\d+"
    r"|\w+@\S+[:#$]"
)
"""Beginnings of lines that do not continue an exception's message."""
_MOST_FRAMES, _MOST_MESSAGE_LINES, _MOST_OPEN = 200, 24, 64


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def is_library(self) -> bool:
        return any(part in self.file for part in _LIBRARY)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass
class Traceback:
    """A traceback; of chained ones, the last, with the exceptions before it."""

    begin: LogLine
    rank: int | None
    frames: list[Frame] = field(default_factory=list)
    type: str = ""
    """Empty if the log is cut before the exception."""
    message: list[str] = field(default_factory=list)
    end: LogLine | None = None
    """The line of the exception."""
    before: list[Traceback] = field(default_factory=list)
    """Tracebacks that this one names as its cause or its context."""
    is_cause: bool = False
    """True if the next traceback names this one as its direct cause."""

    @property
    def name(self) -> str:
        """The class of the exception, without its module."""
        return self.type.rpartition(".")[2]

    @property
    def text(self) -> str:
        """The exception with its message, of several lines if it has several."""
        return f"{self.type}: " + "\n".join(self.message)

    @property
    def users_frame(self) -> Frame | None:
        """The innermost frame outside of libraries, else the innermost."""
        own = [frame for frame in self.frames if not frame.is_library]
        return next(reversed(own or self.frames), None)

    @property
    def chain(self) -> list[Traceback]:
        """This traceback and those before it, the most likely cause first."""
        if not self.before:
            return [self]
        both = [*self.before, self]
        return both if self.before[-1].is_cause else both[::-1]

    @property
    def wraps_another(self) -> bool:
        return bool(self.message) and _WRAPS.match(self.message[0]) is not None


class TracebackReader:
    """Collects the tracebacks of a log, one per stream: a rank, or all lines without one."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int | None], _Open] = {}

    def read(self, line: LogLine) -> tuple[list[Traceback], bool]:
        """Return the tracebacks that end with this line, and True if the line belongs to a traceback."""
        key = (line.file, line.rank)
        reading = self._open.get(key)
        begins = _BEGIN in line.text
        if reading is None:
            if not begins:
                return [], False
            self._open[key] = _Open.of(line, [])
            return ([self._open.pop(next(iter(self._open))).traceback] if len(self._open) > _MOST_OPEN else []), True
        if begins:
            chained = reading.chained or reading.traceback.wraps_another
            done = reading.traceback
            before = [*done.before, done] if chained else []
            self._open[key] = _Open.of(line, before[-8:])
            return ([] if chained else [done]), True
        if reading.takes(line.text, line):
            return [], True
        del self._open[key]
        return [reading.traceback], False

    def rest(self) -> list[Traceback]:
        """Return the tracebacks that the end of the log leaves open."""
        return [reading.traceback for reading in self._open.values()]


@dataclass
class _Open:
    """A traceback that is being read."""

    traceback: Traceback
    prefix: str
    """What stands before `Traceback` in its first line, and may stand before the other lines too."""
    boxed: bool
    """True for the frames with borders that the library rich draws."""
    chained: bool = False
    strange: int = 0
    blank: int = 0

    @classmethod
    def of(cls, line: LogLine, before: list[Traceback]) -> _Open:
        prefix, _, after = line.text.partition(_BEGIN)
        boxed = "─" in prefix or "─" in after
        prefix = prefix.removesuffix("Original ")
        return cls(Traceback(line, line.named_rank, before=before), "" if boxed else prefix, boxed)

    def takes(self, text: str, line: LogLine) -> bool:
        """Add a line; False if the traceback has ended before it."""
        if self.prefix.strip() and text.startswith(self.prefix):
            text = text[len(self.prefix) :]
        traceback = self.traceback
        if found := _FRAME.match(text) or (_RICH_FRAME.match(text) if self.boxed else None):
            if traceback.type:  # another traceback in the message
                traceback.type, traceback.message, traceback.frames = "", [], []
            if len(traceback.frames) < _MOST_FRAMES:
                traceback.frames.append(Frame(found["file"], int(found["line"]), found["function"] or ""))
            self.strange = 0
            return True
        if traceback.type:
            return self._continues(text)
        return self._body(text, line)

    def _body(self, text: str, line: LogLine) -> bool:
        """Add a line between the first line and the exception."""
        outside = text.lstrip(" |").rstrip()
        indent = len(text) - len(text.lstrip())
        found = _EXCEPTION.match(outside)
        if found and (indent == 0 or found["type"].endswith(_ENDS)) and self._is_exception(found, indent):
            self.traceback.type, self.traceback.end = found["type"], line
            self.traceback.message = [(found["message"] or "")]
            return True
        self.strange = 0 if indent or not outside or self.boxed else self.strange + 1
        return self.strange < 20

    def _is_exception(self, found: re.Match[str], indent: int) -> bool:
        known = found["type"].endswith(_ENDS)
        return known or (bool(self.traceback.frames) and found["message"] is not None and "." in found["type"])

    def _continues(self, text: str) -> bool:
        """Add a line of the message, or one that links two tracebacks."""
        if any(words in text for words in _CHAINED):
            self.chained, self.traceback.is_cause = True, _CHAINED[1] in text
            return True
        if not text.strip():
            self.blank += 1
            return self.blank < 3
        message = self.traceback.message
        if self.chained or self.blank or len(message) >= _MOST_MESSAGE_LINES or _RECORD.match(text):
            return False
        found = _EXCEPTION.match(text)
        if found and found["type"].endswith(_ENDS) and not text.startswith("nccl"):
            return False
        message.append(text)
        return True
