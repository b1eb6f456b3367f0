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
from frog.learn.edits import TABLE, Edit, Kind, apply_edits, read_edits

_SOURCE = Path(frog.__file__).parent
_INSTALLED = _SOURCE.parent / "frog_labs"

LABS = _INSTALLED if _INSTALLED.is_dir() else _SOURCE.parents[1] / "labs"
"""The exercises: a package of their own in the wheel, the folder `labs/` in a clone."""

READ = (
    "cluster/kubernetes.md",
    "cluster/slurm.md",
    "launch/launchers.md",
    "launch/network.md",
    "learn/learn.md",
    "measure/collectives.md",
    "observe/check.md",
    "observe/run-folder.md",
    "train/own-strategy.md",
    "train/strategies.md",
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
    uses: tuple[str, ...] = ()
    """Ids of earlier exercises. A check provides their solved files, so that the learner's files can import them."""
    after: int | None = None
    """The lab after whose exercises this one is offered, if that is not its own."""
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
    """A right or wrong solution of an exercise: files on disk, or edits of the reference."""

    exercise: Exercise
    kind: Kind
    name: str
    path: Path | None = None
    """A file that replaces the exercise's first one, or a folder with the files that differ from the reference."""
    edits: tuple[Edit, ...] = ()
    """The solution's entry in solutions.toml, if it has no files."""

    @property
    def title(self) -> str:
        """`wrong/sum-is-average`."""
        return f"{self.kind}/{self.name}"

    @property
    def misconception(self) -> str:
        """The misconception id of a wrong solution; `wrong/sum-is-average.2` is the second one with this id."""
        return self.name.split(".")[0]

    def files(self) -> dict[str, bytes]:
        """Return the content of each file of the exercise, including given ones.

        Raises:  UsageError that names the exercise, the solution and the text of each edit that does not apply.
        """
        files, problems = self.applicable_files()
        if problems:
            id, title = self.exercise.id, self.title
            raise UsageError(
                "\n".join(f"{id}: {TABLE}: {title}: {problem}" for problem in problems),
                f"`frog learn dev show {id} {title} --into DIR` writes it with the edits that apply; change it, "
                f"then frog learn dev add {id} {title} DIR/*",
            )
        return files

    def applicable_files(self) -> tuple[dict[str, bytes], list[str]]:
        """Return the files with the edits that apply, and a problem for each other edit."""
        reference = self.exercise.reference()
        if self.path is None:
            solved = {name: reference[name] for name in self.exercise.manifest.files}
            edited, problems = apply_edits(solved, self.edits)
            return reference | edited, problems
        if self.path.is_file():
            return reference | {self.exercise.manifest.files[0]: self.path.read_bytes()}, []
        own = [name for name in reference if (self.path / name).is_file()]
        return reference | {name: (self.path / name).read_bytes() for name in own}, []


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
        if (match := _ID.fullmatch(self.id)) is None:
            raise UsageError(f"{self.folder}: found the name {self.id}, expected one like lab2/01_average_gradients")
        return match[1], match[2], match[3]

    @cached_property
    def manifest(self) -> Manifest:
        """The parsed manifest.toml.

        Raises:  UsageError that names the file and the place.
        """
        path = self.folder / "manifest.toml"
        hint = "see docs/learn/exercises.md"
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

    def reference(self) -> dict[str, bytes]:
        """Return the files of the reference, including given ones."""
        files = {name: (self.folder / "reference" / name).read_bytes() for name in self.manifest.files}
        return files | {name: (self.folder / name).read_bytes() for name in self.manifest.given}

    def used(self) -> dict[str, bytes]:
        """Return the solved files of the earlier exercises that this one uses.

        Raises:  UsageError if one does not exist, or has a file with the name of this exercise's.
        """
        files: dict[str, bytes] = {}
        for name in self.manifest.uses:
            earlier = Exercise(self.folder.parents[1] / name)
            solved = {file: (earlier.folder / "reference" / file).read_bytes() for file in earlier.manifest.files}
            if both := solved.keys() & {*self.file_names, *files}:
                raise UsageError(f"{self.id}: {name} also has a file {min(both)}", "rename one of them")
            files |= solved
        return files

    def solutions(self, kind: Kind) -> list[Solution]:
        """Return the solutions of a kind by name: those that are files, and those that are edits of the reference.

        Raises:  UsageError if solutions.toml is invalid, or if a solution exists in both forms.
        """
        paths = (self.folder / kind).iterdir() if (self.folder / kind).is_dir() else ()
        solutions = [
            Solution(self, kind, path.stem if path.is_file() else path.name, path)
            for path in paths
            if not path.name.startswith((".", "__"))
        ]
        edited = read_edits(self.folder / TABLE)[kind]
        for solution in solutions:
            if solution.name in edited:
                raise UsageError(
                    f"{self.id}: {solution.title} is both in {TABLE} and in {solution.path}", "remove one of them"
                )
        solutions += [Solution(self, kind, name, edits=edits) for name, edits in edited.items()]
        return sorted(solutions, key=lambda solution: solution.name)


def find_exercises(labs: Path = LABS) -> list[Exercise]:
    """Return all exercises in course order."""
    return [Exercise(path.parent) for path in sorted(labs.glob("lab*/*/manifest.toml"))]


class _Fast(Typed, kw_only=True, frozen=True):
    """fast.toml."""

    exercises: tuple[str, ...]


def fast_path(labs: Path = LABS) -> list[Exercise]:
    """Return the exercises of the fast path, for learners who know training loops; none if a course has no such path.

    Raises:  UsageError if fast.toml is invalid or names an exercise that does not exist.
    """
    path = labs / "fast.toml"
    if not path.exists():
        return []
    chosen = convert(read_toml(path, UsageError), _Fast, str(path), error=UsageError)
    return [find_exercise(name, labs) for name in chosen.exercises]


def find_exercise(name: str, labs: Path = LABS) -> Exercise:
    """Find an exercise by id, number (2.1) or name (average_gradients).

    Raises:  UsageError that lists the candidates.
    """
    exercises = find_exercises(labs)
    matching = [exercise for exercise in exercises if name in _names_of(exercise)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"{name}: names several exercises", f"one of: {', '.join(match.id for match in matching)}")
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


def docs_folder(labs: Path = LABS) -> Path:
    """Return the folder of the labs' pages: `docs/` inside the installed exercises, or next to them in a clone."""
    return labs / "docs" if (labs / "docs").is_dir() else labs.parent / "docs"


def find_pages(labs: Path = LABS) -> dict[str, Path]:
    """Return the pages for a course folder, by name: each lab's, those that they refer to, and their pictures."""
    docs = docs_folder(labs)
    lab_pages = {f"labs/{page.name}": page for page in sorted((docs / "labs").glob("lab*.md"))}
    pictures = {path.relative_to(docs).as_posix(): path for path in sorted(docs.glob("pictures/*/*.svg"))}
    return lab_pages | {name: docs / name for name in READ if (docs / name).is_file()} | pictures
