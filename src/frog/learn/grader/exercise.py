"""Exercises on disk: one folder each, with a manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec

import frog
from frog.core.errors import UsageError
from frog.core.schema import FileName, Positive, Typed, convert, read_toml
from frog.core.user_input import nearest

_SOURCE = Path(frog.__file__).parent
_INSTALLED = _SOURCE.parent / "frog_labs"

LABS = _INSTALLED if _INSTALLED.is_dir() else _SOURCE.parents[1] / "labs"
"""The exercises: a package of their own in the wheel, the folder `labs/` in a clone."""

READ = (
    "collectives.md",
    "kubernetes.md",
    "launchers.md",
    "learn.md",
    "network.md",
    "own-strategy.md",
    "run-folder.md",
    "slurm.md",
    "strategies.md",
)
"""Pages of docs/ that exercises, questions and the labs' pages refer to."""

_ID = re.compile(r"lab(\d+)/(\d\d)_([a-z0-9_]+)")
_NUMBER = re.compile(r"(?:lab\s*)?(\d+)[.,/_-](\d+)")
_LISTED = 20  # how many exercises an error lists at most

Word = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$")]


class PredictionBelief(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A misconception that leads to a wrong prediction."""

    belief: Annotated[str, msgspec.Meta(min_length=1)]
    value: float | None = None
    """The wrong number, in the prediction's unit; or use `factor`."""
    factor: float | None = None
    """The wrong number divided by the measured one."""
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    """Relative tolerance."""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.factor is None):
            raise ValueError("expected either a value or a factor")

    def number(self, measured: float) -> float:
        return measured * self.factor if self.factor is not None else self.value or 0.0


class Prediction(Typed, kw_only=True, frozen=True):
    """A number that a learner can work out before it is measured."""

    id: Word
    question: str
    unit: Literal["B", "s", "steps", "ranks", "%", ""]
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """Relative tolerance."""
    beliefs: tuple[PredictionBelief, ...] = ()


class Misconception(Typed, kw_only=True, frozen=True):
    """A belief that leads to a certain wrong solution."""

    id: Word
    belief: str
    question: str
    """A question that helps without giving the answer away."""


class Manifest(Typed, kw_only=True, frozen=True):
    """An exercise's manifest.toml."""

    KIND = "an exercise's manifest"

    title: str
    able: str
    """The skill that the exercise teaches: "You will be able to ..."."""
    minutes: Positive
    files: Annotated[tuple[FileName, ...], msgspec.Meta(min_length=1)]
    """The files that the learner edits."""
    given: tuple[FileName, ...] = ()
    """Further files that the learner receives and does not edit. Solutions do not repeat them."""
    functions: tuple[str, ...] = ()
    kind: Literal["exercise", "challenge"] = "exercise"
    hints: Annotated[tuple[str, ...], msgspec.Meta(min_length=3, max_length=3)]
    read: str | None = None
    predict: tuple[Prediction, ...] = ()
    misconceptions: tuple[Misconception, ...] = ()

    def __post_init__(self) -> None:
        if both := set(self.files) & set(self.given):
            raise ValueError(f"found {min(both)} both in files and in given, expected it in one of them")


@dataclass(frozen=True)
class Solution:
    """One version of an exercise's files: the stub, the reference, or another right or wrong solution."""

    exercise: Exercise
    path: Path
    """A file that replaces the exercise's first one, or a folder with the files that differ from the reference."""

    @property
    def name(self) -> str:
        return self.path.stem if self.path.is_file() else self.path.name

    @property
    def misconception(self) -> str:
        """The misconception id of a wrong solution; `wrong/sum-is-average.2.py` is the second one with this id."""
        return self.name.split(".")[0]

    def files(self) -> dict[str, bytes]:
        """Return the content of each file of the exercise, including given ones."""
        folder, manifest = self.exercise.folder, self.exercise.manifest
        texts = {name: (folder / "reference" / name).read_bytes() for name in manifest.files}
        texts |= {name: (folder / name).read_bytes() for name in manifest.given}
        if self.path.is_file():
            return texts | {manifest.files[0]: self.path.read_bytes()}
        own = {name for name in texts if (self.path / name).is_file()}
        return texts | {name: (self.path / name).read_bytes() for name in own}


@dataclass(frozen=True)
class Exercise:
    """A folder under labs/, with the learner's files and the check that judges them."""

    folder: Path

    @property
    def id(self) -> str:
        """`lab2/01_average_gradients`."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def lab(self) -> int:
        return int(self._parts[0])

    @property
    def number(self) -> str:
        """Short form of the id, such as `2.1`."""
        return f"{self.lab}.{int(self._parts[1])}"

    @property
    def _parts(self) -> tuple[str, str, str]:
        if (found := _ID.fullmatch(self.id)) is None:
            raise UsageError(f"{self.folder}: found the name {self.id}, expected one like lab2/01_average_gradients")
        return found[1], found[2], found[3]

    @cached_property
    def manifest(self) -> Manifest:
        """The parsed manifest.toml.

        Raises:  UsageError that names the file and the place.
        """
        path = self.folder / "manifest.toml"
        hint = "see docs/exercises.md"
        try:
            return convert(read_toml(path, UsageError, hint), Manifest, str(path), hint, UsageError)
        except FileNotFoundError:
            raise UsageError(f"{path}: is missing", hint) from None

    @property
    def readme(self) -> str:
        return (self.folder / "README.md").read_text()

    def misconception(self, name: str) -> Misconception | None:
        return next((known for known in self.manifest.misconceptions if known.id == name), None)

    @property
    def file_names(self) -> tuple[str, ...]:
        """The files in a course folder: first those to edit, then the given ones."""
        return self.manifest.files + self.manifest.given

    def stub(self) -> dict[str, bytes]:
        """Return the files as a learner receives them."""
        return {name: (self.folder / name).read_bytes() for name in self.file_names}

    def reference(self) -> Solution:
        return Solution(self, self.folder / "reference")

    def solutions(self, kind: Literal["right", "wrong"]) -> list[Solution]:
        paths = sorted((self.folder / kind).iterdir()) if (self.folder / kind).is_dir() else []
        return [Solution(self, path) for path in paths if not path.name.startswith((".", "__"))]


def find_exercises(labs: Path = LABS) -> list[Exercise]:
    """Return all exercises in course order."""
    return [Exercise(path.parent) for path in sorted(labs.glob("lab*/*/manifest.toml"))]


def find_exercise(name: str, labs: Path = LABS) -> Exercise:
    """Find an exercise by id, number (2.1) or name (average_gradients).

    Raises:  UsageError that lists the candidates.
    """
    exercises = find_exercises(labs)
    found = [exercise for exercise in exercises if name in _names_of(exercise)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name}: names several exercises", f"one of: {', '.join(one.id for one in found)}")
    raise UsageError(f"{name}: no such exercise", _nearest(name, exercises))


def _nearest(name: str, exercises: list[Exercise]) -> str:
    """Suggest an exercise for a name that none has; else say which there are, in the lab or in all."""
    numbers = {exercise.number: exercise for exercise in exercises}
    if digits := _NUMBER.fullmatch(name):
        lab, number = (int(digit) for digit in digits.groups())
        if meant := numbers.get(f"{lab}.{number}"):
            return f"did you mean {meant.number}, {meant.id}?"
        of_lab = [exercise for exercise in exercises if exercise.number.startswith(f"{lab}.")]
        exercises = of_lab if len(exercises) > _LISTED and of_lab else exercises
    elif near := nearest(name, [each for exercise in exercises for each in _names_of(exercise)]):
        return f"did you mean {near}?"
    if len(exercises) <= _LISTED:
        return f"one of: {', '.join(exercise.id for exercise in exercises)}"
    first, last = exercises[0], exercises[-1]
    return f"numbers go from {first.number} to {last.number}; a name is, for example, {first.id}"


def _names_of(exercise: Exercise) -> Iterator[str]:
    yield from (exercise.id, exercise.number, exercise.folder.name, exercise.folder.name.split("_", 1)[-1])


def find_pages(labs: Path = LABS) -> dict[str, Path]:
    """Return the pages for a course folder, by name: each lab's, and those that they refer to.

    They are in `docs/` inside the installed exercises, or next to them in a clone.
    """
    docs = labs / "docs" if (labs / "docs").is_dir() else labs.parent / "docs"
    found = {f"labs/{page.name}": page for page in sorted((docs / "labs").glob("lab*.md"))}
    return found | {name: docs / name for name in READ if (docs / name).is_file()}
