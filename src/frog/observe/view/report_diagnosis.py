"""The first thing in the report of a run that failed: what happened, where each rank was, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from frog.core.errors import FrogError
from frog.core.files import open_plain
from frog.core.runs.folder import RunFolder
from frog.core.runs.record import ProgramInfo
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.find import diagnose_path
from frog.observe.diagnose.waits import WaitingGroup, waits_of
from frog.observe.view.waits_picture import draw_waits

_NOTHING = ("none", "unknown", "running")
_AROUND = 3
"""Lines of source to show before and after a line."""
_MOST_BYTES = 1 << 20
_MOST_EVIDENCE = 12
_CODE = re.compile(r"`([^`]+)`")
_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?: \((?P<function>.+)\))?")


@dataclass(frozen=True)
class SourceLine:
    """A line of a program's file."""

    number: int
    text: str
    is_meant: bool
    """True for the line at which ranks were."""


@dataclass(frozen=True)
class ShownPlace:
    """A line of the program, with the lines around it if its file can be read."""

    who: str
    place: str
    lines: list[SourceLine]


@dataclass(frozen=True)
class ShownDiagnosis:
    """What the report shows of a diagnosis."""

    finding: str
    sure: str
    advice: str
    places: list[ShownPlace]
    evidence: list[str]
    waits: list[WaitingGroup] = field(default_factory=list)
    """Who waits for whom; empty if no rank waits for another."""

    @property
    def headline(self) -> str:
        """The finding as HTML, with a capital letter."""
        begins = re.match(r"(rank|ranks|all|collective|every|the|a) ", self.finding)
        return code_marked(self.finding[:1].upper() + self.finding[1:] if begins else self.finding)

    @property
    def advice_lines(self) -> list[str]:
        """The advice as HTML, step by step."""
        return [code_marked(line) for line in self.advice.splitlines()]

    @property
    def picture(self) -> str:
        """The same as a picture: HTML in which all text is escaped."""
        return draw_waits(self.waits)


def shown_diagnosis(folder: RunFolder, roots: list[Path], num_ranks: int) -> ShownDiagnosis | None:
    """Return the diagnosis of a run that failed; None if there is none.

    roots: folders in which the program's files may be.
    """
    try:
        diagnosis = diagnose_path(str(folder.path))[1]
    except FrogError:  # damaged evidence: the sections below name it
        return None
    if diagnosis.fault in _NOTHING or diagnosis.outcome == "completed":
        return None
    return ShownDiagnosis(
        diagnosis.finding,
        "" if diagnosis.certain else diagnosis.confidence or "the most likely explanation, not the only one",
        diagnosis.advice,
        _places(diagnosis, roots, num_ranks),
        [" ".join(line.split()) for line in diagnosis.evidence[:_MOST_EVIDENCE]],
        waits_of(folder),
    )


def code_marked(text: str) -> str:
    """Return a text as HTML, in which `...` is code; all else is escaped."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def source_roots(program: ProgramInfo | None) -> list[Path]:
    """Return the folders in which a program's files may be: where it ran, and where its script is."""
    if program is None:
        return [Path.cwd()]
    cwd = Path(program.cwd)
    return [cwd, *(cwd / Path(word).parent for word in program.command if word.endswith(".py"))]


def _places(diagnosis: Diagnosis, roots: list[Path], num_ranks: int) -> list[ShownPlace]:
    culprit = f"rank {diagnosis.rank}" if diagnosis.rank is not None else "the ranks"
    others = "the other rank" if num_ranks == 2 else "the other ranks"
    places = [(culprit, diagnosis.line), (others, diagnosis.peer_line)]
    return [ShownPlace(who, place, source_of(place, roots)) for who, place in places if place]


def source_of(place: str, roots: list[Path]) -> list[SourceLine]:
    """Return the lines around a place such as "train.py:14 (main)"; empty if no root has the file."""
    match = _PLACE.fullmatch(place)
    if match is None:
        return []
    number = int(match["line"])
    for path in dict.fromkeys(root / match["file"] for root in roots):
        try:
            with open_plain(path) as file:
                text = file.read(_MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
        lines = text.splitlines()
        if number <= len(lines):
            first = max(1, number - _AROUND)
            shown = lines[first - 1 : number + _AROUND]
            return [SourceLine(at, line, at == number) for at, line in enumerate(shown, start=first)]
    return []
