"""Read the files of `frog learn export` and check them against their journals."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from frog.core.errors import UsageError
from frog.core.schema import read_typed, shortened
from frog.learn.export import Export
from frog.learn.journal import first_break, first_hash, head_of
from frog.learn.progress import Guess, Progress, Work, replay

_HINT = "ask the learner for the file again: `frog learn export` writes it"
_MOST_BYTES = 4 << 20
"""Size limit of an export: about ten thousand entries."""
_SAME = ("checks", "hints", "passed", "rejected", "gave_up")
"""Fields of `Work` that the journal also contains."""


@dataclass(frozen=True)
class Report:
    """One learner's export."""

    path: Path
    export: Export
    edits: tuple[str, ...] = ()
    """Descriptions of places in the file that Frog cannot have written."""

    @property
    def name(self) -> str:
        return shortened(self.export.named or self.export.learner, 40)

    @property
    def names(self) -> set[str]:
        """All names that this learner has used."""
        later = {str(entry.detail.get("name")) for entry in self.export.journal if entry.what == "name"}
        return {self.export.learner, self.export.named or self.export.learner, *later}

    @property
    def pseudonym(self) -> str:
        """A name that stays the same on every page about this course folder."""
        return f"learner {first_hash(self.export.learner, self.export.began)[:6]}"

    @property
    def head(self) -> str:
        return head_of(self.export.journal, self.export.learner, self.export.began)

    @property
    def hashes(self) -> list[str]:
        """All heads that this journal has had."""
        export = self.export
        return [first_hash(export.learner, export.began), *(entry.hash for entry in export.journal)]

    @property
    def proof(self) -> str:
        """How far the journal confirms the rest of the file."""
        if self.edits:
            return "edited"
        if not self.export.journal:
            return "no journal" if _summed_up(self.export) else "whole"
        return "begun before the journal" if self.export.journal[0].what == "before" else "whole"

    def work(self, exercise: str) -> Work:
        return next((record.work for record in self.export.exercises if record.id == exercise), Work())


def labels(reports: Sequence[Report], pseudonyms: bool) -> list[str]:
    """Return a unique label per learner: equal names get the pseudonym's digits appended."""
    if pseudonyms:
        return [report.pseudonym for report in reports]
    times = Counter(report.name for report in reports)
    return [
        report.name if times[report.name] == 1 else f"{report.name} ({report.pseudonym.split()[-1]})"
        for report in reports
    ]


def read_reports(paths: Sequence[Path]) -> tuple[list[Report], list[str]]:
    """Return one report per learner, sorted by name, and a message for each unreadable file."""
    reports, problems = [], []
    for path in _files(paths):
        try:
            export = read_typed(path, Export, _HINT, UsageError, _MOST_BYTES)
            reports.append(Report(path, export, tuple(_edits(export))))
        except FileNotFoundError:
            problems.append(f"{path}: is missing\n  try: {_HINT}")
        except UsageError as error:
            problems.append(str(error))
    return sorted(_latest(reports), key=lambda report: report.name.casefold()), problems


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    seen: set[str] = set()
    for path in paths:
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            real = os.path.realpath(file)  # unlike resolve, it accepts circular links
            if real not in seen:
                seen.add(real)
                yield file


def _latest(reports: Sequence[Report]) -> Iterator[Report]:
    """Yield each learner's latest export, with an edit noted if it does not continue the earlier ones."""
    by_learner: dict[tuple[str, str], list[Report]] = {}
    for report in reports:
        by_learner.setdefault((report.export.learner, report.export.began), []).append(report)
    for same in by_learner.values():
        *earlier, last = sorted(same, key=lambda report: report.export.exported)
        edits = [
            f"the export of {older.export.exported[:16]} ended at entry {len(older.export.journal)}, "
            f"head {older.head[:12]}, which this journal does not contain: the journal was rewritten"
            for older in earlier
            if older.head not in last.hashes and not older.edits
        ]
        yield replace(last, edits=(*last.edits, *edits))


def _edits(export: Export) -> Iterator[str]:
    place = first_break(export.journal, export.learner, export.began)
    if place is not None:
        entry = export.journal[place]
        about = f"{entry.at[:16]}, {entry.what} {entry.exercise or ''}".rstrip()
        yield f"$.journal[{place}] ({about}): the hash does not match this entry and the entries before it"
    elif export.journal and export.journal[0].what != "before":
        yield from _unlike_journal(export)


def _unlike_journal(export: Export) -> Iterator[str]:
    """Describe where the file's fields disagree with its journal."""
    begun = Progress(learner=export.learner, began=export.began, journal=export.journal)
    try:
        noted = replay(begun)
    except (LookupError, TypeError, msgspec.ValidationError) as problem:
        yield f"$.journal: contains an entry that Frog never writes: {problem}"
        return
    for place, record in enumerate(export.exercises):
        recorded, expected = record.work, noted.work(record.id)
        for field in _SAME:
            here, there = getattr(recorded, field), getattr(expected, field)
            if here != there:
                yield f"$.exercises[{place}].work.{field}: found {_said(here)}, its journal says {_said(there)}"
    if export.named != noted.named:
        yield "$.named: is not the name that its journal has"  # a page with pseudonyms shows this too
    yield from _differences("predictions", export.predictions, noted.predictions)
    yield from _differences("quizzes", export.quizzes, noted.quizzes)
    yield from _differences("drills", export.drills, noted.drills)
    for run in sorted({run for run, _ in export.records.items() ^ noted.records.items()}):
        yield f"$.records: {run}: does not match the journal"
    gone = noted.exercises.keys() - {record.id for record in export.exercises} - _only_guessed(noted)
    if gone:
        yield f"$.exercises: lacks {', '.join(sorted(gone))}, which the journal contains"


def _only_guessed(progress: Progress) -> set[str]:
    return {name for name, work in progress.exercises.items() if not (work.checks or work.hints or work.gave_up)}


def _differences(field: str, found: Sequence[object], expected: Sequence[object]) -> Iterator[str]:
    if len(found) != len(expected):
        yield f"$.{field}: found {len(found)}, its journal says {len(expected)}"
    for place, (here, there) in enumerate(zip(found, expected, strict=False)):
        if here != there:
            yield f"$.{field}[{place}]: found {_said(here)}, its journal says {_said(there)}"
            return


def _said(value: object) -> str:
    if isinstance(value, Guess):
        return f"{value.text} ({value.value:g}, measured {value.measured})"
    return shortened(msgspec.json.encode(value).decode(), 120)


def _summed_up(export: Export) -> bool:
    return bool(
        export.named or export.exercises or export.predictions or export.quizzes or export.drills or export.records
    )
