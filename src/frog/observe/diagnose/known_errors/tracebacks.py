"""Python tracebacks in a log: their exception, and the user's innermost line.

The lines of several ranks may alternate, a traceback may be cut, and one may contain another (a DataLoader worker's,
a Ray task's). `TracebackReader` receives line after line and returns each traceback when it ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from frog.observe.diagnose.known_errors.lines import LogLine

BEGIN = "Traceback (most recent call last)"
_FRAME = re.compile(r'^\W*File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,200}))?')
_RICH_FRAME = re.compile(r"^[│|] (?P<file>\S{1,300}):(?P<line>\d{1,9}) in (?P<function>[^│|]{1,200}?) *[│|]?$")
_CELL_FRAMES = tuple(
    re.compile(pattern)
    for pattern in (
        r"^File (?P<file>[^\s\"]{1,500}?):(?P<line>\d{1,9})(?:, in (?P<function>[\w.<>]{1,200}).*)?$",
        r"^(?P<file>(?:Cell|Input) In ?\[\d{1,6}\]),? \[?(?:in <cell )?line:? (?P<line>\d{1,9})",
        r"^(?P<file>(?:[~/]|[A-Z]:\\|<ipython)\S{1,500}) in (?P<function>[\w.<>]{1,200})(?:\(.*)?$",
    )
)
"""Frames of IPython, in new and old notebooks; the old ones have their line in the source line with the arrow."""
_ARROW = re.compile(r"^-{1,6}> ?\[?(?P<line>\d{1,9})\]?(?:\([^)]{0,300}\))?(?: (?P<source>.*))?$")
_EXCEPTION = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(?P<message>.*)|[\uff0c\u3002`])?$")
_INLINE_FRAME = re.compile(r'File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9}), in (?P<function>\S{1,200})')
_INLINE_EXCEPTION = re.compile(r"(?:^|[ >)])(?P<type>(?:\w+\.){0,9}\w+(?:Error|Exception)): (?P<message>.*)")
_NAMES_ITS_ERROR = re.compile(r"\w(?:Error|Exception)$|(?:^|\.)(?:errors?|exceptions?|exc)\.[A-Z]\w+$")
_ENDS = ("Error", "Exception", "Exit", "Interrupt", "Warning", "Timeout", "Failure", "Closed", "StopIteration", "Empty")
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|^<(?:frozen |string>)|/lib(?:64)?/python\d|[/\\]Lib[/\\]|\\lib\\\w+\.py$|\.pyx$"
    r"|/bin/[\w-]{1,60}$|^torch[/\\](?:nn|utils|distributed|cuda|multiprocessing|optim|autograd|_\w+)[/\\.]"
)
_FRAMEWORK = re.compile(r"-packages[/\\](?:torch|numpy|jax|jaxlib|tensorflow)[/\\]|^torch[/\\]")
"""Packages in which errors of nearly all programs are raised: a frame of another package says more."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
CARRIES = "raised:"
"""What ends a line of a message, if another exception with its text follows: that one says what is wrong."""
WRAPS = re.compile(r"^Caught \w+ in (?:DataLoader worker process|replica|pin memory thread)")
RECORD = re.compile(
    r"\[|[EWIF]\d{4} |(?:WARNING|ERROR|INFO|DEBUG|CRITICAL)\b|srun|slurm|wandb|[\w.-]+:\d+:\d+ \[|[=─-]{5}|frame #"
    r"|terminate called|Exception raised from|.{0,80}?\d+%|Process |Killing |Unhandled error|Epoch|Loading|python"
    r"|/\S+: line|/\S+\.py:\d+"
    r"|\w+@\S+[:#$]"
)
"""Beginnings of lines that do not continue an exception's message."""
_QUOTES_ONE = re.compile(r"^\s*(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): $")
"""What stands before a traceback that is the message of another exception."""
_CODE = re.compile(r"^\s*(?:return |await )?(?:[\w.,*\[\] ]{1,80} [-+*/@|&]?= ?)?[\w.]{2,80}\(.{0,300}$")
"""A source line with a call."""
_SPAWNED = re.compile(r"^-- Process (\d{1,6}) terminated with the following error")
_MOST_FRAMES, _MOST_MESSAGE_LINES, _MOST_OPEN, _MOST_FOREIGN = 200, 24, 64, 20

_IGNORED = (
    "Exception ignored in",
    "--- Logging error ---",
    "Error in atexit._run_exitfuncs",
    "Error in sys.excepthook",
)
_GOES_ON = re.compile(r"optimizations will not be enabled|falling back to|\bretrying\b|will retry", re.IGNORECASE)
"""Says, in the line before a traceback, that the program continues without what failed."""
_Stream = tuple[str, int | None, str]
"""A file, a rank and another prefix, such as a Ray worker's."""
Taken = Literal["taken", "foreign", "ended"]


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def is_library(self) -> bool:
        return _LIBRARY.search(self.file) is not None

    @property
    def foreignness(self) -> int:
        """0 for a file of the user's, 1 for an installed package's, 2 for torch's, 3 for Python's or a launcher's."""
        if not self.is_library:
            return 0
        if _FRAMEWORK.search(self.file):
            return 2
        return 1 if "-packages" in self.file else 3

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass
class Traceback:
    """A traceback; of chained ones, the last, with the exceptions before it."""

    begin: LogLine
    rank: int | None
    frames: list[Frame] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    """Source lines below the frames."""
    source_of: dict[int, str] = field(default_factory=dict)
    """The first source line below a frame, by the number of the frame."""
    type: str = ""
    """Empty if the log is cut before the exception."""
    message: list[str] = field(default_factory=list)
    end: LogLine | None = None
    """The line of the exception."""
    is_ignored: bool = False
    """True if Python or logging only reports it, and the process continues."""
    is_remark: bool = False
    """True if the line before it says that the program continues without what failed."""
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
    def code(self) -> str:
        """Files, functions and source lines, of this traceback and of those before it."""
        parts = [
            [*(f"{frame.file} in {frame.function}" for frame in each.frames), *each.sources]
            for each in (*self.before, self)  # `before` has those before each of them, too
        ]
        return "\n".join(line for part in parts for line in part)

    @property
    def users_frame(self) -> Frame | None:
        """The innermost frame outside of libraries, else the innermost outside of Python's own."""
        number = self._users_number
        return self.frames[number] if number is not None else None

    @property
    def users_source(self) -> str:
        """The source line of the user's frame; empty if the log lacks it."""
        number = self._users_number
        return "" if number is None else self.source_of.get(number, "")

    @property
    def innermost(self) -> str:
        """The innermost frame, as "file in function"."""
        return f"{self.frames[-1].file} in {self.frames[-1].function}" if self.frames else ""

    @property
    def _users_number(self) -> int | None:
        foreign = [frame.foreignness for frame in self.frames]
        return max(number for number, each in enumerate(foreign) if each == min(foreign)) if foreign else None

    @property
    def chain(self) -> list[Traceback]:
        """This traceback and those before it, the most likely cause first."""
        if not self.before:
            return [self]
        both = [*self.before, self]
        return both if self.before[-1].is_cause else both[::-1]

    @property
    def quotes_frames(self) -> bool:
        """True if the message is the traceback of another process, as Ray's are."""
        return bool(self.message) and "ray::" in self.message[0]

    @property
    def wraps_another(self) -> bool:
        return bool(self.message) and WRAPS.match(self.message[0]) is not None

    @property
    def is_bare_wrapper(self) -> bool:
        """True if it says only that another exception follows: a RuntimeError may be anything."""
        spawned = bool(self.message) and _SPAWNED.match(self.message[0]) is not None
        return spawned or (self.wraps_another and self.message[0].startswith("Caught RuntimeError "))


def _announced(text: str) -> tuple[bool, bool]:
    """Return whether a line says that the next traceback is ignored, and whether it is only a remark."""
    return any(words in text for words in _IGNORED), _GOES_ON.search(text) is not None


def _in_one_line(line: LogLine) -> Traceback | None:
    """Return a traceback that lost its line breaks, as in Markdown without a code block."""
    after = line.text.partition(BEGIN)[2]
    frames = [Frame(match["file"], int(match["line"]), match["function"]) for match in _INLINE_FRAME.finditer(after)]
    match = _INLINE_EXCEPTION.search(after)
    if not frames or match is None:
        return None
    return Traceback(
        line, line.named_rank, frames[:_MOST_FRAMES], type=match["type"], message=[match["message"]], end=line
    )


def _cell_frame(text: str) -> re.Match[str] | None:
    """Return a frame in a notebook's form."""
    if not text.startswith(("File ", "Cell ", "Input ", "~", "/", "<ipython")) and text[1:3] != ":\\":
        return None
    return next((match for form in _CELL_FRAMES if (match := form.match(text))), None)


class TracebackReader:
    """Collects the tracebacks of a log, one per stream: a rank, or all lines without one."""

    def __init__(self) -> None:
        self._open: dict[_Stream, _Open] = {}
        self._last: dict[_Stream, str] = {}
        """The last line of each stream outside of tracebacks: it can say that the next one does not end the process."""

    def read(self, line: LogLine) -> tuple[list[Traceback], bool]:
        """Return the tracebacks that end with this line, and True if the line belongs to a traceback."""
        key = (line.file, line.rank, line.source)
        done: list[Traceback] = []
        reading = self._open.get(key)
        begins = BEGIN in line.text
        if reading is not None and not begins:
            taken = reading.takes(line.text, line)
            if taken != "ended":
                return [], taken == "taken"
            done.append(self._open.pop(key).traceback)
        if begins and (whole := _in_one_line(line)):
            return [*done, *self._close(key), whole], True
        opened = (
            _Open.following(self._open.pop(key, None), line, done)
            if begins
            else _Open.without_begin(line, self._last.get(key, ""))
        )
        if opened is None:
            self._remember(key, line.text)
            return done, False
        opened.traceback.is_ignored, opened.traceback.is_remark = _announced(self._last.pop(key, ""))
        self._open[key] = opened
        if len(self._open) > _MOST_OPEN:
            done += self._close(next(iter(self._open)))
        return done, True

    def _remember(self, key: _Stream, text: str) -> None:
        self._last[key] = text
        if len(self._last) > _MOST_OPEN:
            self._last.pop(next(iter(self._last)))

    def _close(self, key: _Stream) -> list[Traceback]:
        return [self._open.pop(key).traceback] if key in self._open else []

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
    process: int | None = None
    """The process whose traceback comes next."""

    @classmethod
    def of(cls, line: LogLine, before: list[Traceback]) -> _Open:
        prefix, _, after = line.text.partition(BEGIN)
        boxed = "─" in prefix or "─" in after
        prefix = "" if _QUOTES_ONE.match(prefix) else prefix.removesuffix("Original ")
        return cls(Traceback(line, line.named_rank, before=before), "" if boxed else prefix, boxed)

    @classmethod
    def following(cls, last: _Open | None, line: LogLine, done: list[Traceback]) -> _Open:
        """Return a new traceback; it is chained to the open one, or the open one is done."""
        if last is None:
            return cls.of(line, [])
        if not (last.chained or last.traceback.wraps_another):
            done.append(last.traceback)
            return cls.of(line, [])
        opened = cls.of(line, [*last.traceback.before, last.traceback][-8:])
        if opened.traceback.rank is None:
            opened.traceback.rank = last.process
        return opened

    @classmethod
    def without_begin(cls, line: LogLine, before: str) -> _Open | None:
        """Return a traceback whose beginning the log lacks: it starts with a frame, or with the exception itself.

        before: the line before, which may be the source line that raised, or end a box that the library rich draws.
        """
        if _FRAME.match(line.text) or _CELL_FRAMES[0].match(line.text):
            opened = cls(Traceback(line, line.named_rank), "", boxed=False)
            opened.takes(line.text, line)
            return opened
        match = _EXCEPTION.match(line.text.lstrip("\"'`* "))
        if match is None or not match["message"]:
            return None
        if not (_NAMES_ITS_ERROR.search(match["type"]) or (before.startswith("╰─") and match["type"].endswith(_ENDS))):
            return None
        bare = Traceback(line, line.named_rank, type=match["type"], message=[match["message"]], end=line)
        if _CODE.match(before):
            bare.sources.append(before.strip())
        return cls(bare, "", boxed=False)

    def takes(self, text: str, line: LogLine) -> Taken:
        """Add a line, unless it is foreign (another process wrote it) or the traceback has ended before it."""
        if self.prefix.strip() and text.startswith(self.prefix):
            text = text[len(self.prefix) :]
        traceback = self.traceback
        if frame := _FRAME.match(text) or (_RICH_FRAME.match(text) if self.boxed else _cell_frame(text)):
            if traceback.type and not traceback.quotes_frames:
                return "ended"
            if traceback.type:
                traceback.type, traceback.message, traceback.frames, traceback.sources = "", [], [], []
                traceback.source_of = {}
            if len(traceback.frames) < _MOST_FRAMES:
                fields = frame.groupdict()
                at = int(fields.get("line") or 0)
                traceback.frames.append(Frame(frame["file"], at, fields.get("function") or ""))
            self.strange = 0
            return "taken"
        if traceback.type:
            return "taken" if self._continues(text) else "ended"
        if traceback.frames and (arrow := _ARROW.match(text)):
            self._point(int(arrow["line"]), (arrow["source"] or "").strip())
            return "taken"
        return self._body(text, line)

    def _point(self, line: int, source: str) -> None:
        """Set the line and the source of the last frame, to which a notebook's arrow points."""
        traceback = self.traceback
        last = len(traceback.frames) - 1
        traceback.frames[last] = replace(traceback.frames[last], line=line)
        traceback.source_of[last] = source
        traceback.sources.append(source)

    def _body(self, text: str, line: LogLine) -> Taken:
        """Add a line between the first line and the exception."""
        outside = text.lstrip(" |").rstrip()
        indent = len(text) - len(text.lstrip())
        match = _EXCEPTION.match(outside)
        if match and (indent == 0 or match["type"].endswith(_ENDS)) and self._is_exception(match, indent):
            self.traceback.type, self.traceback.end = match["type"], line
            self.traceback.message = [match["message"] or ""]
            return "taken"
        if indent or not outside or self.boxed:
            if outside and len(self.traceback.sources) < _MOST_FRAMES:
                self.traceback.sources.append(outside)
                self.traceback.source_of.setdefault(len(self.traceback.frames) - 1, outside)
            return "taken"
        self.strange += 1
        return "foreign" if self.strange < _MOST_FOREIGN else "ended"

    def _is_exception(self, match: re.Match[str], indent: int) -> bool:
        known = match["type"].endswith(_ENDS)
        return known or (bool(self.traceback.frames) and match["message"] is not None and "." in match["type"])

    def _continues(self, text: str) -> bool:
        """Add a line of the message, or one that links two tracebacks."""
        if match := _SPAWNED.match(text):  # torch.multiprocessing.spawn quotes the traceback of its process
            self.traceback.message[0], self.chained, self.process = text, True, int(match[1])
            return True
        if any(words in text for words in _CHAINED):
            self.chained, self.traceback.is_cause = True, _CHAINED[1] in text
            return True
        if not text.strip():
            self.blank += 1
            return self.blank < 3
        message = self.traceback.message
        if self.chained or self.blank or len(message) >= _MOST_MESSAGE_LINES or RECORD.match(text):
            return False
        match = _EXCEPTION.match(text)
        carries = message[-1].rstrip().endswith(CARRIES)
        if match and match["type"].endswith(_ENDS) and not text.startswith("nccl") and not carries:
            return False
        message.append(text)
        return True
