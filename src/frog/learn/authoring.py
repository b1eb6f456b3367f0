"""`frog learn dev new`, `show` and `add`: the folder of a new exercise, and its solutions as edits of the reference."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

from frog.core.errors import UsageError
from frog.core.files import remove, write_atomic
from frog.core.schema import parse_toml
from frog.core.user_input import nearest
from frog.learn.edits import KINDS, NAME, TABLE, Edit, Kind, edits_in, entry_text, find_edits, read_edits, with_entry
from frog.learn.grader.exercise import LABS, Exercise, Solution, find_exercise
from frog.learn.grader.general import general

_TEMPLATE = LABS / "template"


def new(args: argparse.Namespace) -> int:
    """`frog learn dev new`: create the folder of an exercise from the template."""
    folder = (args.labs or LABS).resolve() / args.exercise
    if re.fullmatch(r"lab\d+/\d\d_[a-z0-9_]+", args.exercise) is None:
        raise UsageError(f"{args.exercise}: expected a name like lab2/09_my_idea")
    if folder.exists():
        raise UsageError(f"{folder}: already exists", "choose another name")
    shutil.copytree(_TEMPLATE, folder)
    print(f"created {folder}")
    print("next: write the stub, the reference and the check; then change a copy of the reference and add it with")
    print(f"  frog learn dev add {args.exercise} wrong/NAME FILE")
    print(f"until frog learn dev check {args.exercise} succeeds")
    return 0


def show(args: argparse.Namespace) -> int:
    """`frog learn dev show`: print the files of a solution, or write them into a folder.

    Edits that do not apply are reported and left out; the exit code is then 1.
    """
    exercise = find_exercise(args.exercise, (args.labs or LABS).resolve())
    files, problems = _files_of(exercise, args.solution)
    own = {name: files[name] for name in exercise.manifest.files}
    if args.into is not None:
        for name, data in own.items():
            write_atomic(args.into / name, data)
            print(args.into / name)
    elif len(own) == 1:
        sys.stdout.buffer.write(*own.values())
    else:
        for name, data in own.items():
            sys.stdout.buffer.write(f"==> {name} <==\n".encode() + data.rstrip(b"\n") + b"\n")
    sys.stdout.flush()
    for problem in problems:
        print(f"{exercise.id}: {TABLE}: {args.solution}: left out: {problem}", file=sys.stderr)
    return int(bool(problems))


def _files_of(exercise: Exercise, title: str) -> tuple[dict[str, bytes], list[str]]:
    if title == "reference":
        return exercise.reference(), []
    solutions = {solution.title: solution for kind in KINDS for solution in exercise.solutions(kind)}
    if title not in solutions:
        near = nearest(title, solutions)
        others = f"one of: reference, {', '.join(solutions)}"
        raise UsageError(f"{exercise.id}: has no solution {title}", f"did you mean {near}?" if near else others)
    return solutions[title].applicable_files()


def add(args: argparse.Namespace) -> int:
    """`frog learn dev add`: turn changed files into a solution, as edits of the reference if these are short."""
    exercise = find_exercise(args.exercise, (args.labs or LABS).resolve())
    kind, name = _kind_and_name(args.solution)
    print(add_solution(exercise, kind, name, _read_files(exercise, args.file)), end="")
    belief = name.split(".")[0]
    if kind == "wrong" and not (exercise.misconception(belief) or belief in general()):
        print(f"next: add a [[misconceptions]] with the id {belief} to {exercise.folder / 'manifest.toml'}")
    print(f"next: frog learn dev check {exercise.id} --only {kind}/{name}")
    return 0


def _kind_and_name(title: str) -> tuple[Kind, str]:
    kind, _, name = title.partition("/")
    for known in KINDS:
        if kind == known and NAME.fullmatch(name):
            return known, name
    raise UsageError(f"{title}: expected a name like wrong/sum-is-average.2 or right/all_gather")


def _read_files(exercise: Exercise, paths: list[Path]) -> dict[str, bytes]:
    """Return the content of files by the exercise's file that they replace: by name, unless there is only one."""
    names = exercise.manifest.files
    if len(names) == len(paths) == 1:
        return {names[0]: paths[0].read_bytes()}
    for path in paths:
        if path.name not in names:
            raise UsageError(f"{path}: the exercise has no file of this name", f"name it one of: {', '.join(names)}")
    if len({path.name for path in paths}) < len(paths):
        raise UsageError(f"{', '.join(map(str, paths))}: two of these files have the same name")
    return {path.name: path.read_bytes() for path in paths}


def add_solution(exercise: Exercise, kind: Kind, name: str, files: dict[str, bytes]) -> str:
    """Write a solution with these files, and replace an existing one of this name. Return what was written.

    Raises:  UsageError if the files equal the reference or another solution.
    """
    reference = {own: exercise.reference()[own] for own in exercise.manifest.files}
    changed = {own: data for own, data in files.items() if data != reference[own]}
    if not changed:
        raise UsageError(
            f"{', '.join(files)}: is the same as the reference, so there is nothing to add",
            f"frog learn dev show {exercise.id} reference prints the reference; change a copy of it",
        )
    table = exercise.folder / TABLE
    read_edits(table)  # report a mistake in it first
    others = [solution for each in KINDS for solution in exercise.solutions(each)]
    for other in others:
        same, problems = other.applicable_files()
        if other.title != f"{kind}/{name}" and not problems and same == exercise.reference() | changed:
            raise UsageError(f"{', '.join(files)}: is the same as {other.title}", "change it, or use that name")
    old = next((solution for solution in others if solution.title == f"{kind}/{name}"), None)
    edits = find_edits(reference, changed)
    if edits is None:
        return _write_files(exercise, kind, name, changed, old)
    _write_table(table, kind, name, edits)
    if old is not None and old.path is not None:
        remove(old.path)
    return f"{table}:\n{entry_text(kind, name, edits)}"


def _write_files(exercise: Exercise, kind: Kind, name: str, changed: dict[str, bytes], old: Solution | None) -> str:
    """Write a solution as files: one for an exercise with one file, else a folder."""
    if old is not None and old.path is not None:
        remove(old.path)
    folder, first = exercise.folder / kind, exercise.manifest.files[0]
    is_file = len(exercise.manifest.files) == 1 and Path(first).suffix
    paths = {own: folder / f"{name}{Path(first).suffix}" if is_file else folder / name / own for own in changed}
    for own, data in changed.items():
        write_atomic(paths[own], data)
    if old is not None and old.path is None:
        _write_table(exercise.folder / TABLE, kind, name, ())
    why = "a file, since it has too little in common with the reference for edits"
    return "".join(f"{path}: {why}\n" for path in paths.values())


def _write_table(table: Path, kind: Kind, name: str, edits: tuple[Edit, ...]) -> None:
    """Add, replace or remove a solution in solutions.toml. A table without solutions is removed."""
    old = table.read_text() if table.exists() else ""
    text = with_entry(old, kind, name, edits)
    try:
        written = edits_in(parse_toml(text), str(table))[kind].get(name, ())
    except ValueError:  # the rest of the file defines the same name
        written = None
    if written != edits:
        raise UsageError(f"{table}: defines {kind}/{name} in another form", f"rewrite it as [[{kind}.NAME]] tables")
    if text:
        write_atomic(table, text)
    else:
        table.unlink(missing_ok=True)
